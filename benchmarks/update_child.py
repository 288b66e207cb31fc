# SPDX-License-Identifier: Apache-2.0
"""The child that times an optimizer's step alone: AdamW on float32 weights, or on 16-bit ones with masters."""

from __future__ import annotations

import os
from typing import Any

from paced import serve

from floatwise.tap.job import Job

__all__ = ["UpdateRun", "job"]

#: The first makes the states, and memory is touched for the first time.
_WARM_UP_STEPS = 2


def job(mode: str | None, steps: int, shape: tuple[int, int, int], *, kernel: bool = True) -> Job:
    """Returns the job of timing fused AdamW on float32 weights (None), or under `MasterWeights` of a mode.

    Args:
      mode: Of the masters.
      steps: How many are timed.
      shape: Matrices, rows and columns.
      kernel: False for PyTorch's operators alone.
    """
    options = {"mode": mode, "kernel": kernel, "shape": list(shape)}
    return Job("", steps=steps + _WARM_UP_STEPS, paced=True, options=options)


class UpdateRun:
    """Matrices with gradients, and an optimizer that steps them."""

    warm_up = _WARM_UP_STEPS

    def __init__(self, job: Job) -> None:
        if not job.options["kernel"]:
            os.environ["FLOATWISE_KERNEL"] = "0"
        import torch

        from floatwise.torch.masters import MasterWeights, kernel_in_use

        torch.manual_seed(job.seed)
        number, *shape = job.options["shape"]
        mode = job.options["mode"]
        weights = [torch.nn.Parameter(torch.randn(shape)) for _ in range(number)]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(weights, fused=True)
        if mode is not None:
            self.optimizer = MasterWeights(self.optimizer, mode, dtype=torch.bfloat16)
        for weight in weights:
            weight.grad = torch.randn(shape).to(weight.dtype)
        self.kernel = mode is not None and kernel_in_use() is not None

    def iteration(self, index: int) -> float:
        """Steps once."""
        self.optimizer.step()
        return 0.0

    def result(self) -> dict[str, Any]:
        """Returns whether the compiled kernel was in use."""
        return {"kernel": self.kernel}


if __name__ == "__main__":
    serve(UpdateRun)

# SPDX-License-Identifier: Apache-2.0
"""What a rehearsed 16-bit training step costs against a float32 step, and against PyTorch's own CPU kernels.

Whole steps of examples/text_gpt.py (12 x 128 characters) and examples/digits_cnn.py (128 images), in turn in one
process: median of the pairwise ratios, and quartiles. PyTorch's own float16 is timed on one smaller batch, which the
rehearsal then takes, too. Takes two minutes on two cores.

    python benchmarks/rehearsal_cost.py [--steps 15] [--dtype float16] [--without-native]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from turns import ROOT, machine

from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.products import MatrixUnits
from floatwise.torch import LossScaler
from floatwise.torch.cuda_policy import CudaPolicy

sys.path.insert(0, str(ROOT / "examples"))
import digits_cnn
import text_gpt

#: Makes a model with its optimizer, and what computes the loss of a batch of a given size.
Example = Callable[[], tuple[nn.Module, Optimizer, Callable[[nn.Module, int], Tensor]]]


def gpt() -> tuple[nn.Module, Optimizer, Callable[[nn.Module, int], Tensor]]:
    """Returns the example's model; a batch has so many windows of 128 characters."""
    torch.manual_seed(0)
    data, _, vocabulary = text_gpt.load_text()
    model = text_gpt.GPT(len(vocabulary), 128, 384, 6, 6)
    generator = torch.Generator().manual_seed(0)

    def loss(model: nn.Module, size: int) -> Tensor:
        result: Tensor = model(*text_gpt.draw_batch(data, size, 128, generator))
        return result

    return model, text_gpt.make_optimizer(model, 1e-3), loss


def cnn() -> tuple[nn.Module, Optimizer, Callable[[nn.Module, int], Tensor]]:
    """Returns the example's model; a batch has so many images."""
    torch.manual_seed(0)
    model = digits_cnn.Net()
    generator = torch.Generator().manual_seed(0)

    def loss(model: nn.Module, size: int) -> Tensor:
        images = torch.rand(size, 1, 8, 8, generator=generator)
        return F.cross_entropy(model(images), torch.randint(10, (size,), generator=generator))

    return model, torch.optim.Adam(model.parameters(), lr=2e-3), loss


#: Example, size of its batch, size of the batch that PyTorch's own float16 kernels can compute in seconds.
EXAMPLES: dict[str, tuple[Example, int, int]] = {"text_gpt": (gpt, 12, 2), "digits_cnn": (cnn, 128, 128)}


class Run:
    """An example that trains in its own way, one timed step after another."""

    def __init__(self, example: Example, dtype: torch.dtype | None, rehearsed: bool) -> None:
        self.model, self.optimizer, self.loss = example()
        self.dtype, self.rehearsed = dtype, rehearsed
        self.scaler = LossScaler("cpu", enabled=dtype is torch.float16)
        self.seconds: list[float] = []

    def step(self, size: int) -> float:
        """Trains one step and returns its seconds."""
        with ExitStack() as stack:
            if self.dtype is not None:
                stack.enter_context(CudaPolicy())
            if self.rehearsed and self.dtype is not None:
                stack.enter_context(CudaSpecials())
                stack.enter_context(MatrixUnits((self.dtype,)))
            start = time.perf_counter()
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=self.dtype, enabled=self.dtype is not None):
                loss = self.loss(self.model, size)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            loss.item()
            self.seconds.append(time.perf_counter() - start)
        return self.seconds[-1]


def against_float32(example: Example, size: int, dtype: torch.dtype, steps: int) -> list[float]:
    """Returns the quartiles of a rehearsed step's time over a float32 step's."""
    plain, rehearsed = Run(example, None, rehearsed=False), Run(example, dtype, rehearsed=True)
    for step in range(steps + 3):
        for run in (plain, rehearsed) if step % 2 else (rehearsed, plain):
            run.step(size)
    ratios = [r / p for r, p in zip(rehearsed.seconds[3:], plain.seconds[3:], strict=True)]
    return statistics.quantiles(ratios, n=4)


def against_native(example: Example, size: int, dtype: torch.dtype) -> tuple[float, float]:
    """Returns the seconds of a step by PyTorch's own kernels, and of a rehearsed one."""
    native, rehearsed = Run(example, dtype, rehearsed=False), Run(example, dtype, rehearsed=True)
    return native.step(size), min(rehearsed.step(size) for _ in range(5))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16")
    parser.add_argument("--without-native", action="store_true", help="do not wait for PyTorch's own kernels")
    args = parser.parse_args()
    dtype: torch.dtype = getattr(torch, args.dtype)
    print(machine())
    for name, (example, size, small) in EXAMPLES.items():
        low, median, high = against_float32(example, size, dtype, args.steps)
        line = f"{name:11} {args.dtype} rehearsed / float32: {median:.2f} ({low:.2f} to {high:.2f})"
        if not args.without_native:
            native, rehearsed = against_native(example, small, dtype)
            line += f"; PyTorch's own kernels / rehearsed, batch of {small}: {native / rehearsed:.0f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()

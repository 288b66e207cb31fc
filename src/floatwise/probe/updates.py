# SPDX-License-Identifier: Apache-2.0
"""Updates that a 16-bit weight would lose: weights are compared before and after each optimizer step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from floatwise.probe.recording import Stall
from floatwise.stats.torch import SummaryCollector, cast

__all__ = ["UpdateProbe"]

#: Elements compared per parameter.
_COMPARED_ELEMENTS = 1 << 12
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class UpdateProbe:
    """Compares a sample of every parameter around an optimizer step.

    A stall is counted by the exact rule: a weight stored in the format, plus its float32 update, rounds back to
    itself. Half an ulp of the stored weight is the same thing and depends on its significand, so a threshold on
    the ratio of update and weight alone would be off by a factor of two.
    """

    def __init__(self, collector: SummaryCollector[tuple[str, str]]) -> None:
        self._collector = collector
        self._before: list[tuple[str, Tensor, Tensor]] = []
        self._moved: Counter[str] = Counter()
        self._lost: Counter[tuple[str, str]] = Counter()

    def before(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        """Keeps a sample of each parameter."""
        with torch._C.DisableTorchFunction():
            self._before = [(name, p, _sample(p)) for name, p in parameters if p.grad is not None]

    def after(self) -> None:
        """Counts what the step has changed."""
        if self._before:
            with torch._C.DisableTorchFunction():
                self._compare()

    def _compare(self) -> None:
        old = torch.cat([sample for _, _, sample in self._before])
        new = torch.cat([_sample(p) for _, p, _ in self._before])
        update = new - old
        lengths = [sample.numel() for _, _, sample in self._before]
        lost = {name: _rounds_back(old, update, dtype).split(lengths) for name, dtype in _DTYPES.items()}
        for i, (name, part) in enumerate(zip((n for n, _, _ in self._before), update.split(lengths), strict=True)):
            self._collector.add((name, "update"), part)
            self._moved[name] += int(part.count_nonzero())
            for dtype, flags in lost.items():
                self._lost[name, dtype] += int(flags[i].count_nonzero())
        self._before = []

    def stalls(self) -> tuple[Stall, ...]:
        """Returns one row per parameter that has moved."""
        return tuple(
            Stall(name, moved, {dtype: self._lost[name, dtype] for dtype in _DTYPES})
            for name, moved in self._moved.items()
            if moved
        )


def _sample(parameter: Tensor) -> Tensor:
    flat = parameter.detach()
    flat = flat.to_local() if hasattr(flat, "to_local") else flat
    flat = flat.reshape(-1)
    stride = (flat.numel() // _COMPARED_ELEMENTS) | 1 if flat.numel() > _COMPARED_ELEMENTS else 1
    return flat[::stride].to("cpu", torch.float32, copy=True)


def _rounds_back(weight: Tensor, update: Tensor, dtype: torch.dtype) -> Tensor:
    stored = cast(weight, dtype)
    return (cast(stored.float() + update, dtype) == stored) & (update != 0)

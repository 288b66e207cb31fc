# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark, and each one's share of the time. Nothing is imported that is not Python's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["PARTS", "PartRow", "budget_seconds"]


@dataclass(frozen=True)
class PartRow:
    """A part.

    Attributes:
      module: Where its `run(part)` is.
      share: Its share of the time, relative to the others'. Chosen: the estimated seconds on an H200 of eight minutes,
        starting Python and CUDA included.
      about: What it shows.
      needs_cuda: Whether there is nothing to show on a CPU.
    """

    module: str
    share: float
    about: str
    needs_cuda: bool = False


PARTS: Mapping[str, PartRow] = {
    "operators": PartRow(
        "benchmarks.gpu.operators", 90, "dtype of every operator's result, and products' values: rehearsed and real"
    ),
    "losses": PartRow("benchmarks.gpu.losses", 110, "loss curves, skipped steps and loss scales: rehearsed and real"),
    "memory": PartRow("benchmarks.gpu.memory", 50, "peak of tensor memory: predicted and measured"),
    "speed": PartRow("benchmarks.gpu.speed", 90, "speed of each recipe over float32: predicted and measured"),
    "kernels": PartRow(
        "benchmarks.gpu.kernels", 40, "which products ran on matrix units, by the names of kernels", True
    ),
    "scaler": PartRow("benchmarks.gpu.scaler", 40, "LossScaler against torch.amp.GradScaler"),
    "masters": PartRow("benchmarks.gpu.masters", 60, "MasterWeights against float32 updates and against autocast"),
}


def budget_seconds(seconds_left: float, to_come: Sequence[str]) -> float:
    """Returns what the first of the parts to come may take: its share, and what those before it did not use."""
    return seconds_left * PARTS[to_come[0]].share / sum(PARTS[name].share for name in to_come)

# SPDX-License-Identifier: Apache-2.0
"""The predicted peak of memory under each recipe, by kind, and the measured one beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.rehearse.memory_prediction import MemoryPrediction
from floatwise.report.plain import plain

__all__ = ["KINDS", "MemoryBar", "kind_bytes", "memory_bars", "memory_note"]

#: Kinds of memory in the order in which they are stacked: what stays first, what comes and goes after it.
KINDS = {
    "weights": Text("weights", "权重"),
    "masters": Text("master weights", "主权重"),
    "optimizer": Text("optimizer states", "优化器状态"),
    "gradients": Text("gradients", "梯度"),
    "casts": Text("16-bit copies of weights", "权重的 16 位副本"),
    "activations": Text("activations", "激活值"),
    "inputs": Text("batch", "输入批次"),
    "update": Text("optimizer's step", "优化器更新的临时内存"),
    "exchange": Text("exchange between processes", "进程间通信"),
}
_PHASES = {
    "forward": Text("forward pass", "前向传播"),
    "backward": Text("backward pass", "反向传播"),
    "update": Text("optimizer's step", "参数更新"),
}
_NOTE = Text(
    "Peak of tensor memory of one process, predicted, by what it consists of at the peak. Where both were measured, on "
    "a CPU, the error was at most {error} %; on a GPU its context and the libraries' working memory come on top.",
    "单个进程的张量内存峰值（预测），按峰值时刻的构成分类。在 CPU 上与实测对比，误差不超过 {error} %；"
    "在 GPU 上还需加上上下文与各库的工作内存。",
)


@dataclass(frozen=True)
class MemoryBar:
    """The predicted peak under one recipe.

    Attributes:
      name: The recipe; numbered where targets need different islands, and with these different memory.
      memory: The prediction.
      measured_bytes: The same peak as measured; None where it was not.
    """

    name: str
    memory: MemoryPrediction
    measured_bytes: int | None

    @property
    def phase(self) -> str:
        """Where in the step the peak is, in words."""
        return str(_PHASES[self.memory.phase])


def kind_bytes(memory: MemoryPrediction) -> dict[str, int]:
    """Returns the bytes of each kind, in the order of `KINDS`."""
    return {kind: int(getattr(memory, f"{kind}_bytes")) for kind in KINDS}


def memory_bars(decisions: Iterable[Decision]) -> list[MemoryBar]:
    """Returns float32 and every recipe that has a prediction, each once."""
    found: dict[tuple[str, MemoryPrediction], MemoryBar] = {}
    for decision in decisions:
        for bar in _bars(decision):
            key = bar.name, bar.memory
            if key not in found or bar.measured_bytes is not None:
                found[key] = bar
    return _told_apart(list(found.values()))


def _bars(decision: Decision) -> Iterator[MemoryBar]:
    measured = decision.measured if decision.here else None
    for verdict in decision.verdicts:
        if verdict.predicted is not None:
            yield MemoryBar("float32", verdict.predicted.float32_memory, measured.float32_bytes if measured else None)
            if verdict.recipe != "fp32":
                is_measured = measured is not None and measured.recipe == verdict.recipe
                seen = measured.planned_bytes if measured is not None and is_measured else None
                yield MemoryBar(plain(verdict.recipe), verdict.predicted.memory, seen)


def _told_apart(bars: Sequence[MemoryBar]) -> list[MemoryBar]:
    seen: Counter[str] = Counter()
    named = []
    for bar in bars:
        seen[bar.name] += 1
        named.append(bar if seen[bar.name] == 1 else replace(bar, name=f"{bar.name} ({seen[bar.name]})"))
    return named


def memory_note(bars: Iterable[MemoryBar]) -> str:
    """Returns what the predicted memory is and how far off it is known to be."""
    return _NOTE.format(error=f"{100 * max(bar.memory.known_error for bar in bars):.0f}")

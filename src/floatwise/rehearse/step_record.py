# SPDX-License-Identifier: Apache-2.0
"""One training step under one plan, as the predictions of memory and speed need it. No framework is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatwise.rehearse.memory_curve import MemoryRecord
from floatwise.rehearse.roofline import Operator

__all__ = ["StepRecord"]


@dataclass(frozen=True)
class StepRecord:
    """One training step under one plan: all that the predictions need, as plain data.

    Attributes:
      recipe: Recipe of the plan.
      memory: For `peak_memory`.
      operators: For `predict_step_seconds`.
    """

    recipe: str
    memory: MemoryRecord
    operators: tuple[Operator, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        operators = [operator.to_json() for operator in self.operators]
        return {"recipe": self.recipe, "memory": self.memory.to_json(), "operators": operators}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StepRecord:
        """Reads what `to_json` gave."""
        operators = tuple(Operator(**operator) for operator in values["operators"])
        return cls(values["recipe"], MemoryRecord.from_json(values["memory"]), operators)

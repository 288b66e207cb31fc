# SPDX-License-Identifier: Apache-2.0
"""A rehearsal held against float32, as data. No framework is imported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from floatwise.rehearse.comparison_rows import GradientRow, LossRow, ModuleRow
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.nonfinite import NonFinite

__all__ = ["Comparison", "SpreadSource"]

SpreadSource = Literal["seeds", "permuted_reductions"]


@dataclass(frozen=True)
class Comparison:
    """A rehearsal held against float32.

    Attributes:
      recipe: Recipe of the plan.
      problems: What speaks against the plan, the worst first; empty when nothing does.
      remarks: What else was seen.
      losses: Step by step.
      final_losses: Mean of the last steps: float32, rehearsed.
      tolerance: How far apart those two may be.
      spread_source: What the float32 runs differ by: `seeds` or `permuted_reductions`.
      gradients: Parameter by parameter, in the model's order.
      modules: Where in the forward pass precision is lost, the worst first.
      first_nonfinite: The first operator that made infinities or NaN of finite numbers.
      loss_scale: The scale that suits the first batch; None when none does.
      settling_skips: Steps skipped at first until the plan's scale has come down to it.
      skipped_steps: Steps skipped after that.
    """

    recipe: str
    problems: tuple[Evidence, ...]
    remarks: tuple[Evidence, ...]
    losses: tuple[LossRow, ...]
    final_losses: tuple[float, float]
    tolerance: float
    spread_source: SpreadSource
    gradients: tuple[GradientRow, ...]
    modules: tuple[ModuleRow, ...]
    first_nonfinite: NonFinite | None
    loss_scale: float | None
    settling_skips: int
    skipped_steps: int

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against the plan."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON holds it, with infinities and NaN as text."""
        values = {**asdict(self), "passes": self.passes}
        values["problems"] = [e.to_json() for e in self.problems]
        values["remarks"] = [e.to_json() for e in self.remarks]
        return _plain(values)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """Reads what `to_json` gave.

        Raises:
          ValueError: It gave something else.
        """
        return TypeAdapter(cls).validate_python(values)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

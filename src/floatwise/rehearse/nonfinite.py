# SPDX-License-Identifier: Apache-2.0
"""An operator that made infinities or NaN of finite numbers, as data. No framework is imported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["NonFinite", "OperatorSite", "Phase"]

Phase = Literal["forward", "backward", "update"]


class OperatorSite(NamedTuple):
    """An operator called in a module: the `call`-th of its kind there in a step."""

    module: str
    operator: str
    phase: Phase
    call: int


@dataclass(frozen=True)
class NonFinite:
    """An operator with finite inputs and an infinite or undefined result.

    Attributes:
      module: Path of the innermost module that called it; empty in the outermost one.
      operator: PyTorch's name of it, without the namespace (`mm`, `mul`).
      call: How many of its kind came before it in the module, in the same step and phase.
      phase: Forward pass, backward pass, or the optimizer's update.
      step: Number of the training step, the first being 0.
      position: How many operators came before it in the step.
      result: `nan`, `inf` or `-inf`.
      format: Format of the result.
      input_amax: Largest magnitude among its inputs.
      follower: The operator that used the result first, `div` or `mul` by a number; empty when it was another.
      factor: What that operator multiplied the result by; 1 when it was another.
      true_amax: Largest magnitude of the same result in float32; None where that run made none.
    """

    module: str
    operator: str
    call: int
    phase: Phase
    step: int
    position: int
    result: Literal["nan", "inf", "-inf"]
    format: str
    input_amax: float
    follower: str = ""
    factor: float = 1.0
    true_amax: float | None = None

    @property
    def site(self) -> OperatorSite:
        """Where it was called."""
        return OperatorSite(self.module, self.operator, self.phase, self.call)

    def to_json(self) -> dict[str, Any]:
        """Returns its values as JSON holds them."""
        return asdict(self)

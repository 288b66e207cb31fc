# SPDX-License-Identifier: Apache-2.0
"""What a recorded training step had in memory, at each moment that could be its peak. No framework is imported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from floatwise.rehearse.memory_states import WeightCounts

__all__ = ["MemoryRecord", "Moment", "OldGradients", "Phase", "undominated"]

Phase = Literal["forward", "backward", "update"]

OldGradients = Literal["dropped", "in_forward", "kept"]
"""What a loop does with the gradients of the step before: drops them before the forward pass, between the passes, or
keeps their memory (`zero_grad(set_to_none=False)`, or gradients that add up over steps)."""


@dataclass(frozen=True)
class Moment:
    """Bytes alive at a moment, beside weights, optimizer states and the batch.

    Attributes:
      phase: Part of the step.
      activations_bytes: Tensors that the passes made, casts and gradients of parameters excepted.
      casts_bytes: 16-bit copies of weights.
      gradients_bytes: Gradients of parameters made so far.
    """

    phase: Phase
    activations_bytes: int
    casts_bytes: int
    gradients_bytes: int


@dataclass(frozen=True)
class MemoryRecord:
    """One training step under one plan, enough to predict its peak for any sharding.

    Attributes:
      moments: Those that no other moment of their phase exceeds in every kind, in order of time.
      inputs_bytes: The batch.
      update_bytes: What the optimizer's step took for itself.
      slots: float32 numbers that the optimizer keeps for each trained weight.
      weights: The model's weights.
      old_gradients: What the loop does with the gradients of the step before.
    """

    moments: tuple[Moment, ...]
    inputs_bytes: int
    update_bytes: int
    slots: float
    weights: WeightCounts
    old_gradients: OldGradients = "dropped"

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self) | {"moments": [asdict(moment) for moment in self.moments]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> MemoryRecord:
        """Reads what `to_json` gave."""
        moments = tuple(Moment(**moment) for moment in values["moments"])
        return cls(**{**values, "moments": moments, "weights": WeightCounts(**values["weights"])})


def undominated(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """Returns the moments that no other moment of their phase exceeds in every kind."""
    kept: list[Moment] = []
    for moment in moments:
        if not any(_exceeds(other, moment) for other in kept):
            kept = [other for other in kept if not _exceeds(moment, other)]
            kept.append(moment)
    return tuple(kept)


def _exceeds(a: Moment, b: Moment) -> bool:
    return (
        a.phase == b.phase
        and a.activations_bytes >= b.activations_bytes
        and a.casts_bytes >= b.casts_bytes
        and a.gradients_bytes >= b.gradients_bytes
    )

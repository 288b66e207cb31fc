# SPDX-License-Identifier: Apache-2.0
"""The rows of a comparison: a gradient, a step, a module. No framework is imported."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GradientRow", "LossRow", "ModuleRow"]

#: Share of a parameter's gradient that may vanish beyond what is zero in float32: Micikevicius et al. 2018
#: (arXiv:1710.03740, section 3.1) see about 5 % of a speech model's weight gradients below 2^-24, and that it hurts.
LARGEST_ZERO_SHARE = 0.05
#: What a gradient may be short of what is required of it. Chosen by experience: of some sixty healthy trainings under
#: six recipes none was short by 2.5 dB, and what was wrong was short by 4.6 or more.
WRONG_MARGIN_DB = 3.0
#: Share of a parameter's updates that may be lost beyond those that float32 loses: past it, most never arrive.
LARGEST_STALLED_SHARE = 0.5


@dataclass(frozen=True)
class GradientRow:
    """The gradient of one parameter at the weights that training begins with.

    Attributes:
      parameter: Its path.
      sqnr_db: Signal-to-noise ratio against float32; `-inf` when it is not finite, None when float32's is zero.
      cosine: Cosine of the angle to float32's; None when either is zero or not finite.
      required_db: The least ratio that is no fault; None for a gradient that may be noise.
      float32_db: The ratio of float32 against itself, its sums added up in another order.
      zero_share: Share of zeros.
      float32_zero_share: Share of zeros in float32.
      stalled_share: Share of the updates in all steps that changed nothing.
      float32_stalled_share: The same in float32.
      narrow_range: Whether the plan has a format with a narrower range than float32's, in which small values vanish.
        In others zeros come from elsewhere, as from a hinge that rounding switches off.
    """

    parameter: str
    sqnr_db: float | None
    cosine: float | None
    required_db: float | None
    float32_db: float | None
    zero_share: float
    float32_zero_share: float
    stalled_share: float
    float32_stalled_share: float
    narrow_range: bool = True

    @property
    def is_wrong(self) -> bool:
        """Whether it has more noise than is harmless."""
        if self.sqnr_db is None or self.required_db is None:
            return False
        return self.sqnr_db < self.required_db - WRONG_MARGIN_DB

    @property
    def has_vanished(self) -> bool:
        """Whether too much of it is zero that is not in float32."""
        return self.zero_share - self.float32_zero_share > LARGEST_ZERO_SHARE and (self.narrow_range or self.is_wrong)

    @property
    def stalls(self) -> bool:
        """Whether most of its updates are lost that float32 makes."""
        return self.stalled_share - self.float32_stalled_share > LARGEST_STALLED_SHARE


@dataclass(frozen=True)
class LossRow:
    """One step: both losses, how far apart they are, how far apart the float32 runs are, and the gradients.

    Attributes:
      step: Its number.
      float32: Loss of the float32 run.
      rehearsed: Loss under the plan.
      distance: Magnitude of the difference.
      spread: Largest less smallest loss of the float32 runs at this step.
      gradient_db: Signal-to-noise ratio of all gradients together against float32's of this step, for the first
        steps. Weights differ from the second step on.
    """

    step: int
    float32: float
    rehearsed: float
    distance: float
    spread: float
    gradient_db: float | None


@dataclass(frozen=True)
class ModuleRow:
    """A module in the forward pass of the first batch, its worst call.

    Attributes:
      module: Its path.
      input_db: Signal-to-noise ratio of what came in, against float32; at most that of one rounding.
      output_db: The same of what went out; `-inf` for infinities and NaN.
      amax: Largest magnitude that float32 took in or gave out.
    """

    module: str
    input_db: float
    output_db: float
    amax: float

    @property
    def lost_db(self) -> float:
        """What the module itself lost."""
        return self.input_db - self.output_db

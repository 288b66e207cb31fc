# SPDX-License-Identifier: Apache-2.0
"""What the planner decides, as data: the terminal, the HTML page and `--json` all render this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from floatwise.plan import Plan
from floatwise.planner.reasons import Reason
from floatwise.rehearse.memory_prediction import MemoryPrediction
from floatwise.rehearse.roofline import SpeedPrediction
from floatwise.rehearse.verdict import Verdict as Rehearsal

__all__ = [
    "Decision",
    "Finding",
    "Island",
    "LossParity",
    "LossScaleChoice",
    "Measured",
    "Predicted",
    "Rehearsal",
    "RoleRow",
    "Status",
    "Verdict",
]

Status = Literal["chosen", "accepted", "refused", "not_worth_it"]


@dataclass(frozen=True)
class Island:
    """A module the plan keeps in float32, and why."""

    module: str
    reason: Reason


@dataclass(frozen=True)
class LossScaleChoice:
    """The loss scales that lose nothing, as predicted from the recorded gradients.

    Attributes:
      window_log2: Smallest and largest safe power of two.
      initial: The scale the plan starts from.
      largest: Module whose gradient bounds the window from above.
    """

    window_log2: tuple[int, int]
    initial: float
    largest: str


@dataclass(frozen=True)
class Predicted:
    """What a recipe would bring on the target, reckoned from one recorded step; never a measurement.

    Attributes:
      speed: Against float32 there; None where the device's row has no rates, as those of CPUs.
      memory: Peak of tensor memory in one process.
      float32_memory: The same in float32.
      fits: Whether that is at most the largest memory the device is sold with; None where its row names none.
    """

    speed: SpeedPrediction | None
    memory: MemoryPrediction
    float32_memory: MemoryPrediction
    fits: bool | None

    @property
    def memory_ratio(self) -> float:
        """Predicted peak over float32's; below 1 is a saving."""
        return self.memory.peak_bytes / max(self.float32_memory.peak_bytes, 1)


@dataclass(frozen=True)
class Verdict:
    """One recipe judged for one target.

    Attributes:
      recipe: Its name.
      status: What it comes to.
      reasons: In order of weight.
      islands: Modules that it would keep in float32.
      loss_scale: For float16.
      rehearsal: What its rehearsal came to; None when it was not rehearsed.
      predicted: Speed and memory on the target; None when no step was recorded under it.
    """

    recipe: str
    status: Status
    reasons: tuple[Reason, ...]
    islands: tuple[Island, ...] = ()
    loss_scale: LossScaleChoice | None = None
    rehearsal: Rehearsal | None = None
    predicted: Predicted | None = None


@dataclass(frozen=True)
class LossParity:
    """Final losses of the planned run against float32's own spread over seeds.

    Attributes:
      within_spread: True when the plan's loss is inside `spread`.
      planned: Mean loss of the last steps under the plan.
      float32: The same mean for each float32 seed; the first has the plan's own seed.
      spread: Lowest and highest loss that counts as float32's own noise.
    """

    within_spread: bool
    planned: float
    float32: tuple[float, ...]
    spread: tuple[float, float]


@dataclass(frozen=True)
class ProductFormat:
    """Products of a training step whose operands have one format.

    Attributes:
      count: How many there are.
      share: Of all multiplications, 0 to 1.
    """

    count: int
    share: float


@dataclass(frozen=True)
class Products:
    """In which formats the products of a training step under the plan are computed, by format.

    Attributes:
      asked: As the program asks for them.
      ran: As the compiled program computes them; None where nothing was compiled.
      backend: For what it was compiled: `cpu`, `gpu`, `tpu`.
    """

    asked: Mapping[str, ProductFormat]
    ran: Mapping[str, ProductFormat] | None
    backend: str

    def share(self, dtype: str, ran: bool = False) -> float:
        """Returns the share of the multiplications in a format."""
        row = ((self.ran or {}) if ran else self.asked).get(dtype)
        return row.share if row is not None else 0.0


@dataclass(frozen=True)
class Measured:
    """The plan against float32, run step by step in turn on this machine.

    Attributes:
      recipe: The recipe that was measured.
      device: Name of the machine's device.
      steps: Timed steps of each.
      speed_ratio: Planned steps per second over float32's: the median of the ratios of neighbouring steps.
      speed_spread: First and third quartile of the ratios of neighbouring steps.
      memory_ratio: Planned peak of tensor memory over float32's; below 1 is a saving.
      planned_bytes: Peak tensor memory under the plan.
      float32_bytes: Peak tensor memory in float32.
      step_seconds: Median seconds of a step, planned then float32.
      losses: Loss of every step: `planned` and `float32`.
      loss_parity: None when no loss was seen.
      products: None when they were not looked at.
    """

    recipe: str
    device: str
    steps: int
    speed_ratio: float
    speed_spread: tuple[float, float]
    memory_ratio: float | None
    planned_bytes: int | None
    float32_bytes: int | None
    step_seconds: tuple[float, float]
    losses: Mapping[str, tuple[float, ...]]
    loss_parity: LossParity | None
    products: Products | None = None


@dataclass(frozen=True)
class Finding:
    """Something that needs the reader's eye: found in the script, or in what it computes.

    Attributes:
      severity: `note` informs, `warning` needs action.
      where: `path:line`, a module path, or empty.
    """

    severity: Literal["note", "warning"]
    where: str
    reason: Reason


@dataclass(frozen=True)
class RoleRow:
    """One row of the evidence table: what a role's values do in a format.

    Attributes:
      role: weight, input, output, grad_output, weight_grad or update.
      format: Name of the number format.
      amax: Largest magnitude over all modules.
      worst_module: Module that has it.
      underflow_share: Share of nonzero values rounded to zero (no scaling).
      overflow_share: Share of values past the largest finite value (no scaling).
      sqnr_db: Signal to quantisation noise of the whole role, decibels.
    """

    role: str
    format: str
    amax: float
    worst_module: str
    underflow_share: float
    overflow_share: float
    sqnr_db: float | None


@dataclass(frozen=True)
class Decision:
    """The answer of `floatwise plan`.

    Attributes:
      target: Device id from the hardware table.
      target_name: Its name as people write it.
      here: True when the target is the device of this machine.
      recipe: The recommended recipe.
      reasons: Why, most important first.
      matrix_share: Share of a float32 step's time in matrix products and convolutions, 0 to 1, on the machine
        that recorded it.
      script: The script as it was given.
      arguments: Its own arguments.
      parameters: Trainable parameters.
      steps: Optimizer steps recorded.
    """

    target: str
    target_name: str
    here: bool
    recipe: str
    plan: Plan
    reasons: tuple[Reason, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    evidence: tuple[RoleRow, ...]
    script: str
    steps: int
    parameters: int
    matrix_share: float
    arguments: tuple[str, ...] = ()
    measured: Measured | None = None
    islands: tuple[Island, ...] = field(default=())
    loss_scale: LossScaleChoice | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the recommended recipe."""
        return next(verdict for verdict in self.verdicts if verdict.recipe == self.recipe)

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `floatwise plan --json` prints."""
        from floatwise.planner.decision_json import decision_to_json

        return decision_to_json(self)

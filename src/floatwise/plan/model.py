# SPDX-License-Identifier: Apache-2.0
"""The precision plan: which number formats a training run uses, and where. All else reads or makes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from floatwise.errors import UnknownNameError
from floatwise.plan.dtypes import ComputeDtype, StoreDtype
from floatwise.plan.evidence import Evidence, EvidenceTable
from floatwise.plan.match import ROOT, check_pattern
from floatwise.plan.part import PlanPart
from floatwise.plan.problems import Rule
from floatwise.plan.recipe_table import RECIPES, Master, Scaling
from floatwise.plan.rules import PLAN_RULES
from floatwise.plan.scale_rules import SCALE_RULES
from floatwise.plan.text import PlanText

__all__ = ["SCHEMA_VERSION", "LossScale", "ModulePolicy", "Plan", "Policy", "Reductions", "Weights"]

SCHEMA_VERSION = 1
"""Version of the plan's keys; it grows when a key changes its meaning or goes away."""


def _known_version(version: int) -> int:
    if version != SCHEMA_VERSION:
        raise ValueError(f"got {version}, expected {SCHEMA_VERSION}; write the plan again with `floatwise plan`")
    return version


def _known_recipe(name: str) -> str:
    if name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    return name


def _glob(pattern: str) -> str:
    check_pattern(pattern)
    return pattern or ROOT


class Policy(PlanPart):
    """The formats of a module: weights, arithmetic, outputs (the triple of DeepMind's jmp).

    A float8 `compute_dtype` speaks of the matrix products of linear layers; all else then computes in
    bfloat16, as in torchao's float8 training.
    """

    param_dtype: StoreDtype = Field(default="float32", description="the format the weights are stored in")
    compute_dtype: ComputeDtype = Field(
        default="bfloat16", description="the format matrix products take their operands in"
    )
    output_dtype: StoreDtype = Field(default="float32", description="the format the outermost outputs are handed on in")


class ModulePolicy(PlanPart):
    """Formats of the modules that a glob covers; the empty glob becomes `(root)`."""

    module: Annotated[PlanText, AfterValidator(_glob)] = Field(description="a glob of module paths")
    policy: Policy = Field(description="the table of their formats: param_dtype, compute_dtype, output_dtype")
    reason: PlanText = Field(default="", description="why these modules differ, for the reader")


class Weights(PlanPart):
    """How weights stored in 16 bits keep float32 accuracy over many small updates.

    `float32` keeps a second copy, `split` the 16 trailing bits beside a bfloat16 weight (together the exact
    float32 weight), `kahan` the rounding error of the last update, and `stochastic` rounds updates up or down
    by chance.
    """

    master: Master = Field(default="none", description="how 16-bit weights keep float32 accuracy")


# Powers of two that a float32 holds as normal numbers (IEEE 754-2019, table 3.5).
_ScaleExponent = Annotated[int, Field(ge=-126, le=127)]


class LossScale(PlanPart):
    """The factor on the loss that keeps small gradients above the smallest float16.

    Sources of the defaults: `torch.amp.GradScaler` for start, growth, backoff, interval and hysteresis; floor 1 as in
    DeepSpeed's and Megatron's `min_loss_scale`; ceiling 2**24 as in apex's `max_loss_scale`; headroom of 4 bits as in
    Graphcore PopART's automatic loss scaling (`binEdgeLocation` 0.0625).
    """

    rules: ClassVar[tuple[Rule, ...]] = SCALE_RULES

    mode: Literal["dynamic", "static"] = Field(
        default="dynamic", description="whether the scale follows the gradients or stays as it is"
    )
    initial_scale: float = Field(default=65536.0, gt=0, description="the scale of the first step")
    growth_factor: float = Field(
        default=2.0, gt=1, description="what the scale is multiplied by after growth_interval good steps"
    )
    backoff_factor: float = Field(
        default=0.5, gt=0, lt=1, description="what the scale is multiplied by after an overflow"
    )
    # The upper limit is that of GradScaler's growth tracker, an int32 tensor.
    growth_interval: int = Field(
        default=2000,
        ge=1,
        lt=2**31,
        description="how many steps without overflow the scale waits before it grows",
    )
    growth: Literal["headroom", "fixed"] = Field(
        default="headroom",
        description="whether the scale grows only where gradients leave room, or after every growth_interval",
    )
    headroom_bits: int = Field(
        default=4,
        ge=0,
        le=40,
        description="how many powers of two the largest gradient stays below float16's largest value after growth",
    )
    hysteresis: int = Field(
        default=1, ge=1, lt=2**24, description="how many steps in a row must overflow before the scale backs off"
    )
    floor: float = Field(default=1.0, gt=0, description="the scale below which backing off stops")
    ceiling: float = Field(default=2.0**24, gt=0, description="the scale above which growth stops")
    window_log2: Annotated[tuple[_ScaleExponent, _ScaleExponent] | None, Field(strict=False)] = Field(
        default=None, description="the smallest and largest power of two that lost nothing when measured"
    )


class Reductions(PlanPart):
    """Formats of sums over processes and micro-batches, and of buffers."""

    reduce_dtype: StoreDtype = Field(default="float32", description="the format gradients are summed over processes in")
    accumulate_dtype: StoreDtype = Field(
        default="float32", description="the format gradients are summed over batches in"
    )
    buffer_dtype: StoreDtype = Field(default="float32", description="the format of buffers, such as running statistics")


class Plan(PlanPart):
    """Which number formats a training run uses, where, and why."""

    rules: ClassVar[tuple[Rule, ...]] = PLAN_RULES
    stand_ins: ClassVar[Mapping[str, Any]] = {"recipe": "fp32", "policy": {}}

    schema_version: Annotated[int, AfterValidator(_known_version)] = Field(
        default=SCHEMA_VERSION, description="the version of these keys"
    )
    recipe: Annotated[PlanText, AfterValidator(_known_recipe)] = Field(
        description=f"the recipe the plan began as: {', '.join(RECIPES)}",
        json_schema_extra={"enum": list(RECIPES)},
    )
    target: PlanText = Field(default="", description="the device the plan was made for")
    script: PlanText = Field(default="", description="the file name of the training script it was made for")
    float32_matmul: Literal["ieee", "tf32"] = Field(
        default="ieee", description="how products of float32 operands are computed"
    )
    scaling: Scaling | None = Field(
        default=None,
        description="how many scale factors a float8 operand has: one, one per row, or one per 32 elements",
    )
    policy: Policy = Field(description="the table of the default formats: param_dtype, compute_dtype, output_dtype")
    modules: Annotated[tuple[ModulePolicy, ...], Field(strict=False)] = Field(
        default=(), description="modules with formats of their own; later entries win"
    )
    weights: Weights = Field(default=Weights(), description="how 16-bit weights keep float32 accuracy")
    loss_scale: LossScale | None = Field(default=None, description="the factor on the loss, for float16 only")
    reductions: Reductions = Field(default=Reductions(), description="formats of gradient sums and of buffers")
    evidence: Evidence = Field(
        default_factory=EvidenceTable, description="what the plan was decided from; it changes nothing"
    )

    @property
    def compute_dtype(self) -> str:
        """The default compute format."""
        return self.policy.compute_dtype

    @property
    def is_float32(self) -> bool:
        """True when nothing is lower than float32: no value kept or summed, and no TF32 product."""
        named = {name for p in self._policies() for name in (p.param_dtype, p.compute_dtype, p.output_dtype)}
        sums = self.reductions
        named |= {sums.reduce_dtype, sums.accumulate_dtype, sums.buffer_dtype}
        return named == {"float32"} and self.float32_matmul == "ieee"

    @property
    def islands(self) -> tuple[ModulePolicy, ...]:
        """The entries that keep modules in float32 inside a lower default."""
        if self.compute_dtype == "float32":
            return ()
        return tuple(entry for entry in self.modules if entry.policy.compute_dtype == "float32")

    def _policies(self) -> tuple[Policy, ...]:
        return (self.policy, *(entry.policy for entry in self.modules))

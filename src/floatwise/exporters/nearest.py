# SPDX-License-Identifier: Apache-2.0
"""From the formats that a configuration trains in to the nearest plan, with what the plan had to assume."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from floatwise.errors import PlanError
from floatwise.exporters.settings import SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS, SIXTEEN_BIT_FORMATS
from floatwise.plan.model import LossScale, ModulePolicy, Plan, Policy, Reductions, Weights
from floatwise.plan.problems import Loc, Problem
from floatwise.plan.recipe_table import RECIPE_TABLE, Master, Scaling

__all__ = ["NO_CEILING", "NO_FLOOR", "nearest_plan"]

NO_FLOOR = 2.0**-126
"""`LossScale.floor` of a system without one: the smallest scale a plan can name (float32's smallest normal)."""

NO_CEILING = 2.0**127
"""`LossScale.ceiling` of a system without one: the largest power of two in float32."""

_PURE = Text(
    "Weights are stored in {dtype} and updated there, with no float32 copy: updates under half an ulp of a weight are "
    "lost, and training stalls while the loss looks plausible. The plan given here adds master weights.",
    "权重以 {dtype} 存储并直接更新，没有 float32 副本：小于权重半个 ulp 的更新会丢失，训练停滞而损失看起来仍然正常。"
    "这里给出的计划补上了主权重。",
)
_PURE_DO = Text(
    "Keep the weights in float32 (mixed precision), or keep master weights.",
    "权重保持 float32（混合精度），或保留主权重。",
)
_NO_SCALE = Text(
    "Gradients are float16 and the loss is not scaled: gradients of 2^-25 or less become zero. The plan given here "
    "adds a dynamic loss scale.",
    "梯度为 float16 而损失没有缩放：不大于 2^-25 的梯度会变为零。这里给出的计划补上了动态损失缩放。",
)
_NO_SCALE_DO = Text(
    "Scale the loss (GradScaler), or compute in bfloat16.", "对损失做缩放（GradScaler），或改用 bfloat16 计算。"
)
_IDLE = Text(
    "A loss scale is set while no gradient is float16: it prevents nothing. The plan given here has none.",
    "设置了损失缩放，但没有 float16 梯度：它不起任何作用。这里给出的计划不含损失缩放。",
)
_IDLE_DO = Text("Delete the loss scale.", "删除损失缩放。")


def nearest_plan(
    *,
    compute_dtype: str,
    param_dtype: str = "float32",
    output_dtype: str = "float32",
    master: Master = "none",
    loss_scale: LossScale | None = None,
    scaling: Scaling | None = None,
    float32_matmul: Literal["ieee", "tf32"] = "ieee",
    reductions: Reductions | None = None,
    modules: Iterable[ModulePolicy] = (),
    findings: Iterable[Finding] = (),
    loc: Loc = (),
) -> Reading:
    """Returns the plan of these formats.

    Args:
      compute_dtype: Operand format of matrix products.
      param_dtype: Format the weights are stored in.
      output_dtype: Format of the outermost outputs.
      master: What keeps float32 accuracy beside weights in 16 bits.
      loss_scale: What the system scales the loss with; None when it does not.
      scaling: Scale factors of float8 operands.
      float32_matmul: How products of float32 operands are computed.
      reductions: Formats of sums and buffers; all float32 when None.
      modules: Modules with formats of their own.
      findings: What was found before; kept in front.
      loc: The setting that decides the formats, to which findings point.

    Raises:
      SettingsProblems: No plan has these formats together.
    """
    found = list(findings)
    reductions = reductions or Reductions()
    modules = tuple(modules)
    policy = Policy(param_dtype=param_dtype, compute_dtype=compute_dtype, output_dtype=output_dtype)
    policies = [policy, *(entry.policy for entry in modules)]
    stored = next((p.param_dtype for p in policies if p.param_dtype in SIXTEEN_BIT_FORMATS), None)
    if stored and master == "none":
        found.append(Finding("pure-16-bit", loc, _filled(_PURE, stored), _PURE_DO))
        master = "split" if stored == "bfloat16" else "float32"
    if not stored:
        master = "none"
    names = {d for p in policies for d in (p.param_dtype, p.compute_dtype, p.output_dtype)}
    float16 = "float16" in names | {reductions.reduce_dtype, reductions.accumulate_dtype}
    if float16 and loss_scale is None:
        found.append(Finding("no-loss-scale", loc, _NO_SCALE, _NO_SCALE_DO))
        loss_scale = LossScale()
    elif loss_scale is not None and not float16:
        found.append(Finding("idle-loss-scale", loc, _IDLE, _IDLE_DO))
        loss_scale = None
    try:
        plan = Plan(
            recipe=_fitting_recipe(policy, scaling, float32_matmul),
            policy=policy,
            modules=modules,
            weights=Weights(master=master),
            loss_scale=loss_scale,
            scaling=scaling,
            float32_matmul=float32_matmul,
            reductions=reductions,
        )
    except PlanError as error:
        raise SettingsProblems([Problem(loc, f"no plan has these formats together: {error}")]) from None
    return Reading(plan, tuple(found))


def _fitting_recipe(policy: Policy, scaling: Scaling | None, float32_matmul: str) -> str:
    """Returns the recipe that names these formats; the nearest by the compute format when none does."""
    float8 = policy.compute_dtype in FLOAT8_FORMATS
    fallback = "fp32"
    for name, row in RECIPE_TABLE.items():
        same = row.compute_dtype == policy.compute_dtype or (float8 and row.compute_dtype in FLOAT8_FORMATS)
        if not same:
            continue
        if fallback == "fp32":
            fallback = name
        if float8 and row.scaling == scaling:
            return name
        if not float8 and row.param_dtype == policy.param_dtype:
            if row.compute_dtype != "float32" or row.float32_matmul == float32_matmul:
                return name
    return fallback


def _filled(text: Text, dtype: str) -> Text:
    return Text(text.en.format(dtype=dtype), text.zh.format(dtype=dtype))

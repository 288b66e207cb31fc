# SPDX-License-Identifier: Apache-2.0
"""A plan as Megatron-LM's flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.exporters.flag_knob import flag_text
from floatwise.exporters.megatron.knobs import REMAINDERS_SINCE
from floatwise.exporters.system import Request
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.plan.model import LossScale, Plan

__all__ = ["BLOCKWISE_SINCE", "write"]

BLOCKWISE_SINCE = "0.13"
"""First version whose --fp8-recipe takes blockwise (arguments.py, tags core_v0.12.0 and core_v0.13.0)."""

_FLOAT32 = Text(
    "# Megatron-LM trains in float32 unless a flag says otherwise.", "# 不加任何参数时，Megatron-LM 以 float32 训练。"
)
_RECIPES = {"tensorwise": "tensorwise", "mx": "mxfp8"}
_FORMATS = {"tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}


def write(plan: Plan, request: Request) -> Mapping[str, Any] | str:
    """Returns the flags; a comment alone where float32, which has no flag, is wanted."""
    if plan.compute_dtype == "float32":
        return f"{_FLOAT32}\n"
    values: dict[str, Any] = {"fp16" if plan.compute_dtype == "float16" else "bf16": True}
    if _sums_in_float32(plan):
        values["accumulate_allreduce_grads_in_fp32"] = True
    elif plan.compute_dtype != "float16":
        values["grad_reduce_in_bf16"] = True
    if plan.loss_scale is not None:
        values |= _loss_scale(plan.loss_scale)
    if plan.compute_dtype in FLOAT8_FORMATS:
        recipe = _recipe(plan, request)
        values["fp8_format"] = _FORMATS[recipe]
        values["fp8_recipe"] = recipe
    elif plan.weights.master == "split" and request.version.within(REMAINDERS_SINCE, ""):
        values["use_distributed_optimizer"] = True
        values["use_precision_aware_optimizer"] = True
    return values


def _sums_in_float32(plan: Plan) -> bool:
    """Returns whether the one buffer of gradients is float32: it serves batches and processes alike."""
    return "float32" in (plan.reductions.accumulate_dtype, plan.reductions.reduce_dtype)


def _loss_scale(scale: LossScale) -> dict[str, Any]:
    if scale.mode == "static":
        return {"loss_scale": flag_text(scale.initial_scale)}
    return {
        "initial_loss_scale": flag_text(scale.initial_scale),
        "min_loss_scale": flag_text(scale.floor),
        "loss_scale_window": scale.growth_interval,
        "hysteresis": scale.hysteresis,
    }


def _recipe(plan: Plan, request: Request) -> str:
    fine = "blockwise" if request.version.within(BLOCKWISE_SINCE, "") else "tensorwise"
    return _RECIPES.get(plan.scaling or "", fine)

# SPDX-License-Identifier: Apache-2.0
"""A plan as DeepSpeed's configuration."""

from __future__ import annotations

import math
from typing import Any

from floatwise.exporters.deepspeed.block_knobs import MAX_SCALE_POWER
from floatwise.exporters.deepspeed.modes import (
    BLOCK,
    BUFFERS_KEPT_SINCE,
    SHORT,
    Mode,
    mode_of_plan,
    sums_in,
)
from floatwise.exporters.system import Request
from floatwise.exporters.version import Version
from floatwise.plan.model import LossScale, Plan

__all__ = ["write"]

# The key is there from the first on; from the second on its default is true (tags v0.17.1 and v0.19.3).
_CHECK_SINCE, _CHECKED_SINCE = "0.17.1", "0.19.3"


def write(plan: Plan, request: Request) -> dict[str, Any]:
    """Returns the values of ds_config.json for a plan."""
    mode, stage, version = mode_of_plan(plan), request.options["stage"], request.version
    # DeepSpeed asks for a batch size; everything but precision is left to the file this is merged into.
    values: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
    if mode.kind == "stored":
        values[BLOCK[mode.dtype]] = _fp16(plan, stage) if mode.dtype == "float16" else _bf16(version)
    elif mode.kind == "autocast":
        values["torch_autocast"] = {"enabled": True, "dtype": mode.dtype}
    values |= _communication(plan, mode, stage, values)
    types = _data_types(plan, mode, stage, version)
    if types:
        values["data_types"] = types
    values["zero_optimization"] = {"stage": stage}
    return values


def _communication(plan: Plan, mode: Mode, stage: int, values: dict[str, Any]) -> dict[str, Any]:
    wanted = plan.reductions.reduce_dtype
    if mode.kind == "autocast" and stage:
        if wanted == "float32":
            values["torch_autocast"]["lower_precision_safe_modules"] = []
        return {}
    return {} if wanted == mode.weights else {"communication_data_type": SHORT[wanted]}


def _data_types(plan: Plan, mode: Mode, stage: int, version: Version) -> dict[str, str]:
    types: dict[str, str] = {}
    # bfloat16 sums for float16 weights, or float16 sums for others, are not a mix that DeepSpeed is tested with.
    wanted = plan.reductions.accumulate_dtype
    if mode.weights != "float32" and wanted != mode.weights:
        wanted = "float32"
    if stage == 0 and mode == Mode("stored", "bfloat16"):
        wanted = "float32"  # where this version can have it, all versions of that age must
    if wanted != mode.weights and sums_in(mode, stage, version, wanted) == wanted:
        types["grad_accum_dtype"] = SHORT[wanted]
    buffers = plan.reductions.buffer_dtype
    if mode.kind == "stored" and buffers != "float32" and version >= Version.of(BUFFERS_KEPT_SINCE):
        types["buffer_dtype"] = SHORT[buffers]
    return types


def _bf16(version: Version) -> dict[str, Any]:
    asked = version.within(_CHECK_SINCE, _CHECKED_SINCE)
    return {"enabled": True, "check_grad_overflow": True} if asked else {"enabled": True}


def _fp16(plan: Plan, stage: int) -> dict[str, Any]:
    scale = plan.loss_scale
    assert scale is not None, "a plan with float16 gradients has a loss scale"
    block: dict[str, Any] = {"enabled": True, "auto_cast": True}
    limit = 2.0**MAX_SCALE_POWER
    if scale.mode == "static":
        return {**block, "loss_scale": min(scale.initial_scale, limit)}
    power = _power(scale)
    block |= {
        "loss_scale": 0,
        "initial_scale_power": power,
        "loss_scale_window": scale.growth_interval,
        # Without ZeRO every overflow halves the scale (fp16/unfused_optimizer.py).
        "hysteresis": scale.hysteresis if stage else 1,
        "min_loss_scale": min(max(1, int(scale.floor)), 2**power),
    }
    if block["hysteresis"] > 1:
        block["consecutive_hysteresis"] = True
    return block


def _power(scale: LossScale) -> int:
    """Returns the exponent of the largest power of two that is not above the first scale, within the limits."""
    exponent = math.frexp(scale.initial_scale)[1] - 1
    return min(max(exponent, 0), MAX_SCALE_POWER)

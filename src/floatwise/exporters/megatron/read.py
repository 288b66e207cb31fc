# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's flags as the nearest plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.exporters.flag_knob import flag_values
from floatwise.exporters.megatron.contradictions import contradictions
from floatwise.exporters.megatron.findings import findings_of
from floatwise.exporters.megatron.knobs import KNOBS, REMAINDERS_SINCE
from floatwise.exporters.nearest import NO_CEILING, NO_FLOOR, nearest_plan
from floatwise.exporters.settings import Settings, SettingsProblems
from floatwise.exporters.system import Reading
from floatwise.exporters.version import Version
from floatwise.plan.model import LossScale, Reductions
from floatwise.plan.problems import PlanProblems, Problem
from floatwise.plan.recipe_table import Master, Scaling

__all__ = ["read", "recognises"]

_SCALING: Mapping[str, Scaling] = {
    "tensorwise": "tensorwise",
    "delayed": "tensorwise",
    "blockwise": "rowwise",
    "mxfp8": "mx",
}
_OWN = (
    "accumulate_allreduce_grads_in_fp32",
    "grad_reduce_in_bf16",
    "initial_loss_scale",
    "loss_scale_window",
    "use_precision_aware_optimizer",
    "tensor_model_parallel_size",
    "micro_batch_size",
)


def recognises(settings: Settings) -> float:
    """Returns how surely these are Megatron's flags: `--bf16` alone is also Hugging Face's."""
    if settings.form != "flags":
        return 0.0
    if any(name in settings.values for name in _OWN):
        return 0.9
    if "fp8_format" in settings.values or "fp8_recipe" in settings.values:
        return 0.7
    return 0.2 if "fp16" in settings.values or "bf16" in settings.values else 0.0


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan of the flags.

    Raises:
      SettingsProblems: Flags contradict each other, as Megatron's own assertions do.
    """
    values = flag_values(settings.values, KNOBS)
    problems = contradictions(values, settings.values)
    if problems:
        raise SettingsProblems(problems)
    sixteen = "float16" if values.get("fp16") else "bfloat16" if values.get("bf16") else None
    stored = sixteen or "float32"
    float8 = values.get("fp8_format") is not None
    sums = stored if _sums_in_stored(values, sixteen) else "float32"
    return nearest_plan(
        compute_dtype="float8_e4m3fn" if float8 else stored,
        param_dtype=stored,
        output_dtype="float32",
        master=_master(values, sixteen, float8, version),
        loss_scale=_loss_scale(values) if sixteen == "float16" or values.get("loss_scale") else None,
        scaling=_SCALING[values.get("fp8_recipe", "delayed")] if float8 else None,
        reductions=Reductions(reduce_dtype=sums, accumulate_dtype=sums, buffer_dtype=stored),
        findings=findings_of(values),
        loc=("fp16",) if values.get("fp16") else ("bf16",) if sixteen else (),
    )


def _sums_in_stored(values: Mapping[str, Any], sixteen: str | None) -> bool:
    """Returns whether the buffer of gradients has the weights' 16-bit format.

    As megatron/training/arguments.py decides it: --bf16 asks for float32 unless --grad-reduce-in-bf16 or a bfloat16
    main gradient is given; --fp16 does not ask for it.
    """
    if sixteen == "bfloat16":
        return bool(values.get("grad_reduce_in_bf16")) or values.get("main_grads_dtype") == "bf16"
    return sixteen is not None and not values.get("accumulate_allreduce_grads_in_fp32")


def _master(values: Mapping[str, Any], sixteen: str | None, float8: bool, version: Version) -> Master:
    if sixteen is None:
        return "none"
    remainders = (
        sixteen == "bfloat16"
        and values.get("use_precision_aware_optimizer")
        and values.get("main_params_dtype", "fp32") == "fp32"
        and not float8
        and version.within(REMAINDERS_SINCE, "")
    )
    return "split" if remainders else "float32"


def _loss_scale(values: Mapping[str, Any]) -> LossScale:
    static = values.get("loss_scale")
    if static:
        return LossScale(
            mode="static", initial_scale=static, growth="fixed", floor=min(NO_FLOOR, static), ceiling=NO_CEILING
        )
    try:
        return LossScale(
            initial_scale=values.get("initial_loss_scale", 2.0**32),
            growth_interval=int(values.get("loss_scale_window", 1000)),
            hysteresis=values.get("hysteresis", 2),
            growth="fixed",
            floor=values.get("min_loss_scale", 1.0),
            ceiling=NO_CEILING,
        )
    except PlanProblems as error:
        raise SettingsProblems([Problem(("initial_loss_scale",), p.text) for p in error.problems]) from None

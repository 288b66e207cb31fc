# SPDX-License-Identifier: Apache-2.0
"""Lightning's arguments read: what trains under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from floatwise.exporters.grad_scaler import SCALER_NAMES, loss_scale_of
from floatwise.exporters.lightning import findings as found
from floatwise.exporters.lightning.deepspeed_scale import scale_of_strategy
from floatwise.exporters.lightning.given import Given, given_in
from floatwise.exporters.lightning.strategies import ALIASES, STRATEGIES, Formats, formats_of, strategy_of_name
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.torch_calls import dtype_of, float32_matmul_of
from floatwise.exporters.version import Version
from floatwise.plan.model import LossScale, Reductions
from floatwise.plan.problems import Problem

__all__ = ["read"]

_HOOKS = {"bf16_compress_hook": "bfloat16", "fp16_compress_hook": "float16"}


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan.

    Raises:
      SettingsProblems: Lightning refuses the arguments, or only running would tell what they are.
    """
    given = given_in(settings)
    strategy = _strategy(given)
    plugin = given.plugin
    precision, findings = _precision(given, plugin)
    _refuse(given, strategy, precision, plugin)
    loc = (*given.loc, "plugins" if plugin else "precision")
    if precision.startswith("transformer-engine"):
        return _transformer_engine(given, precision, findings, settings)
    if plugin is None and strategy in ("auto", "ddp") and (cpu := found.cpu_float16(given, precision)):
        precision, findings = "bf16-mixed", [*findings, cpu]
    formats = _reduced(given, strategy, formats_of(precision, strategy))
    findings += found.deepspeed_is_no_autocast(given, strategy, precision)
    findings += found.clipping_with_fused(given, strategy, precision)
    return nearest_plan(
        compute_dtype=formats.compute,
        param_dtype=formats.stored,
        output_dtype="float32" if given.is_fabric else formats.compute,
        master="float32" if formats.masters else "none",
        loss_scale=_scale(given, strategy, precision, plugin, formats),
        float32_matmul=float32_matmul_of(settings),
        reductions=Reductions(reduce_dtype=formats.sums, accumulate_dtype=formats.kept, buffer_dtype=formats.buffers),
        findings=findings,
        loc=loc,
    )


def _strategy(given: Given) -> str:
    value = given.strategy
    name = value.name if isinstance(value, Call) else value
    kind = strategy_of_name(name) if isinstance(name, str) and not isinstance(name, Dotted) else None
    if kind is None:
        raise SettingsProblems(
            [
                Problem(
                    (*given.loc, "strategy"),
                    f"got {name!r}, under which precision is not known here; known: {', '.join(STRATEGIES)}",
                )
            ]
        )
    return kind


def _precision(given: Given, plugin: Call | None) -> tuple[str, list[Finding]]:
    """Returns the precision text that is in force, and what is to say about how it was given."""
    value = given.values.get("precision")
    if plugin is not None:
        if value is not None:
            text = (
                f"got the precision {value!r} beside the plugin {plugin.name}, for which Lightning raises ValueError; "
                "delete one of them"
            )
            raise SettingsProblems([Problem((*given.loc, "precision"), text)])
        return _precision_of_plugin(given, plugin), []
    if value is None:
        return "32-true", []
    if not isinstance(value, str | int) or isinstance(value, Dotted):
        text = 'this is known only when the script runs; write it, as in precision="bf16-mixed"'
        raise SettingsProblems([Problem((*given.loc, "precision"), text)])
    if value in ALIASES:
        full = ALIASES[value]
        return full, [found.alias(given, value, full)] if full.endswith("mixed") else []
    return str(value), []


def _precision_of_plugin(given: Given, plugin: Call) -> str:
    where = (*given.loc, "plugins")
    text = plugin.args[0] if plugin.args else plugin.kwargs.get("precision")
    if plugin.name == "DoublePrecision":
        text = "64-true"
    elif plugin.name == "HalfPrecision":
        text = text or "16-true"
    elif plugin.name == "TransformerEnginePrecision":
        low = dtype_of(plugin.kwargs.get("weights_dtype"))
        text = "transformer-engine-float16" if low == "float16" else "transformer-engine"
    elif plugin.name == "BitsandbytesPrecision":
        raise SettingsProblems([Problem(where, "got BitsandbytesPrecision: no plan holds quantised weights")])
    if not isinstance(text, str) or isinstance(text, Dotted):
        raise SettingsProblems([Problem(where, f"the precision of {plugin.name} is known only when the script runs")])
    return text


def _refuse(given: Given, strategy: str, precision: str, plugin: Call | None) -> None:
    """Raises for what Lightning raises for."""
    where = (*given.loc, "plugins" if plugin else "precision")
    problem = None
    if precision == "64-true":
        problem = 'got float64, which no plan has; write "32-true"'
    elif precision not in STRATEGIES[strategy] and not (plugin and strategy == "model_parallel"):
        problem = (
            f'got "{precision}" with the strategy {strategy}, for which Lightning raises ValueError; expected '
            f"{' or '.join(STRATEGIES[strategy])}"
        )
    elif plugin and plugin.name == "MixedPrecision" and precision == "bf16-mixed" and _has_scaler(plugin):
        problem = "got a scaler for bf16-mixed, for which Lightning raises an error; delete it: bfloat16 needs none"
    elif plugin and plugin.name == "FSDPPrecision" and _has_scaler(plugin):
        problem = (
            "got FSDPPrecision(..., scaler=...), which always raises ValueError (its check reads `precision` before "
            "it is set); set the attribute instead: plugin.scaler = ShardedGradScaler(...)"
        )
    elif strategy == "fsdp" and plugin and plugin.name != "FSDPPrecision":
        problem = f"got {plugin.name} with the strategy fsdp, which takes FSDPPrecision only; write that"
    elif strategy in ("fsdp", "deepspeed") and given.values.get("accelerator") == "cpu":
        where = (*given.loc, "accelerator")
        problem = f'got "cpu" with the strategy {strategy}, which Lightning has for GPUs only'
    if problem:
        raise SettingsProblems([Problem(where, problem)])


def _has_scaler(plugin: Call) -> bool:
    return plugin.kwargs.get("scaler") is not None or len(plugin.args) > (1 if plugin.name == "FSDPPrecision" else 2)


def _reduced(given: Given, strategy: str, formats: Formats) -> Formats:
    """Returns the formats with what the strategy object says beside the precision."""
    call = given.strategy
    if not isinstance(call, Call):
        return formats
    if strategy == "ddp":
        hook = call.kwargs.get("ddp_comm_hook")
        return replace(formats, sums=_HOOKS.get(hook.last, formats.sums)) if isinstance(hook, Dotted) else formats
    policy = given.resolved(call.kwargs.get("mixed_precision")) if strategy == "fsdp" else None
    if not isinstance(policy, Call):
        return formats
    compute = dtype_of(policy.kwargs.get("param_dtype")) or formats.stored
    return replace(
        formats,
        compute=compute,
        sums=dtype_of(policy.kwargs.get("reduce_dtype")) or compute,
        buffers=dtype_of(policy.kwargs.get("buffer_dtype")) or formats.stored,
    )


def _scale(given: Given, strategy: str, precision: str, plugin: Call | None, formats: Formats) -> LossScale | None:
    if strategy == "deepspeed":
        call = given.strategy
        values: Mapping[str, Any] = call.kwargs if isinstance(call, Call) else {}
        return scale_of_strategy(values, given.loc) if formats.compute == "float16" else None
    if precision != "16-mixed":
        return None
    scaler = _handed_scaler(given, plugin) if plugin else None
    # Without one Lightning makes a scaler with the defaults of torch (plugins/precision/{amp,fsdp}.py).
    return loss_scale_of(scaler or Call("GradScaler", (), {}, 0))


def _handed_scaler(given: Given, plugin: Call) -> Call | None:
    value = given.resolved(plugin.kwargs.get("scaler") or (plugin.args[2] if len(plugin.args) > 2 else None))
    if isinstance(value, Call) and value.name in SCALER_NAMES:
        return value
    variable = given.plugin_variable
    calls = given.settings.calls
    return next((c for c in calls if variable and c.assigned == f"{variable}.scaler" and c.name in SCALER_NAMES), None)


def _transformer_engine(given: Given, precision: str, findings: list[Finding], settings: Settings) -> Reading:
    """TransformerEnginePrecision converts weights to 16 bits and has one scale a tensor (its DelayedScaling)."""
    low = "float16" if precision.endswith("float16") else "bfloat16"
    if low == "float16":
        text = 'got float16 weights around float8 products, which no plan has; write "transformer-engine"'
        raise SettingsProblems([Problem((*given.loc, "precision"), text)])
    return nearest_plan(
        compute_dtype="float8_e4m3fn",
        param_dtype=low,
        output_dtype="float32" if given.is_fabric else low,
        scaling="tensorwise",
        float32_matmul=float32_matmul_of(settings),
        reductions=Reductions(reduce_dtype=low, accumulate_dtype=low, buffer_dtype=low),
        findings=findings,
        loc=(*given.loc, "precision"),
    )

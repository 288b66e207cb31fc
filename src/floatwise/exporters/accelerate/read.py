# SPDX-License-Identifier: Apache-2.0
"""Accelerate's configuration read: a file of `accelerate launch`, or the calls of a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from floatwise.exporters.accelerate import findings as rows
from floatwise.exporters.accelerate.policy import policy_of
from floatwise.exporters.accelerate.write import COMM_HOOKS
from floatwise.exporters.accelerate_modes import Formats, deepspeed_formats, mode_formats
from floatwise.exporters.grad_scaler import loss_scale_of
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.torch_calls import float32_matmul_of
from floatwise.exporters.version import Version
from floatwise.plan.model import Reductions
from floatwise.plan.problems import Loc, Problem
from floatwise.plan.recipe_table import Scaling

__all__ = ["read", "recognises"]

_FLOAT8 = "float8_e4m3fn"
# Members of accelerate.utils.PrecisionType.
_ENUM = {"NO": "no", "FP8": "fp8", "FP16": "fp16", "BF16": "bf16"}
_ON = (True, "yes", "true", "True", "1")


def read(settings: Settings, version: Version) -> Reading:
    """Returns the plan that Accelerate trains with this configuration.

    Raises:
      SettingsProblems: Values contradict each other, or there is no configuration.
    """
    return _read_source(settings) if settings.form == "python" else _read_file(settings)


def recognises(settings: Settings) -> float:
    """Returns how surely settings are Accelerate's."""
    if settings.form == "python":
        return 0.95 if settings.call("Accelerator") else 0.0
    if settings.form == "flags":
        # Trainer has no such flag: `accelerate launch --mixed_precision …`, or a script that hands it on.
        return 0.95 if settings.has("mixed_precision") else 0.0
    if not settings.has("distributed_type"):
        return 0.4 if settings.has("mixed_precision") else 0.0
    return 0.95 if settings.has("mixed_precision") or settings.has("compute_environment") else 0.7


def _read_file(settings: Settings) -> Reading:
    mode = str(settings.get("mixed_precision") or ("fp16" if settings.get("fp16") is True else "no")).lower()
    loc: Loc = ("mixed_precision",) if settings.has("mixed_precision") else ()
    kind = str(settings.get("distributed_type", default="NO")).upper()
    on_cpu = settings.get("use_cpu") is True
    if kind == "DEEPSPEED":
        return nearest_plan(**deepspeed_formats(mode).arguments(), loc=loc)
    fsdp = _version_of_fsdp(settings) if kind == "FSDP" else 0
    found = []
    if kind == "MEGATRON_LM" and mode != "no":
        found.append(Finding("megatron-decides", ("distributed_type",), *rows.MEGATRON))
    for name in ("amax_history_length", "amax_compute_algorithm"):
        if settings.has("fp8_config", name):
            found.append(Finding("idle-amax-key", ("fp8_config", name), *rows.IDLE_AMAX))
    if mode == "fp16" and on_cpu:
        found.append(Finding("float16-on-cpu", loc, *rows.FLOAT16_ON_CPU))
    if mode != "fp8" and settings.get("fp8_config"):
        found.append(Finding("idle-fp8-config", ("fp8_config",), *rows.IDLE_FP8_CONFIG))
    if settings.get("downcast_bf16") in _ON:
        found.append(Finding("downcast-bf16", ("downcast_bf16",), *rows.DOWNCAST))
    formats = mode_formats(mode, fsdp, float32=on_cpu)
    if mode != "fp8":
        return nearest_plan(**formats.arguments(), findings=found, loc=loc)
    backend = _entry(settings, "backend")
    mx = backend == "TE" and _entry(settings, "use_mxfp8_block_scaling") in _ON
    if backend == "MSAMP":
        found.append(Finding("ms-amp", ("fp8_config",), *rows.MS_AMP))
    return _float8(formats, "mx" if mx else "tensorwise", found, loc)


def _version_of_fsdp(settings: Settings) -> int:
    config = settings.get("fsdp_config")
    config = config if isinstance(config, Mapping) else {}
    return 2 if str(config.get("fsdp_version", config.get("version", 1))) == "2" else 1


def _entry(settings: Settings, name: str) -> Any:
    return settings.get("fp8_config", name, default=settings.get("fp8_config", f"fp8_{name}"))


def _read_source(settings: Settings) -> Reading:
    call = settings.call("Accelerator")
    if call is None:
        raise SettingsProblems([Problem((), "there is no call of Accelerator(...) in this source")])
    loc: Loc = ("Accelerator", "mixed_precision") if "mixed_precision" in call.kwargs else ("Accelerator",)
    given = _mixed_precision(call)
    # A name in the source is a str, too, but no literal.
    mode = given if isinstance(given, str) and not isinstance(given, Dotted) else ""
    found = [] if mode else [Finding("set-by-launcher", loc, *rows.SET_BY_LAUNCHER)]
    plugin = settings.call("DeepSpeedPlugin")
    if plugin is not None:
        config = plugin.kwargs.get("hf_ds_config", "")
        if plugin.open or isinstance(config, Dotted) or not isinstance(config, str | Mapping):
            found.append(Finding("deepspeed-unread", ("DeepSpeedPlugin",), *rows.DEEPSPEED_UNREAD))
        return nearest_plan(**deepspeed_formats(mode or "no").arguments(), findings=found, loc=loc)
    formats = _formats(settings, call, mode or "no", found, loc)
    if mode != "fp8":
        matmul = float32_matmul_of(settings)
        return nearest_plan(**formats.arguments(), float32_matmul=matmul, findings=found, loc=loc)
    if settings.call("MSAMPRecipeKwargs"):
        found.append(Finding("ms-amp", ("MSAMPRecipeKwargs",), *rows.MS_AMP))
    return _float8(formats, _scaling(settings), found, loc, float32_matmul_of(settings))


def _mixed_precision(call: Call) -> Any:
    """Returns the argument, which is the third where it is not named (accelerate/accelerator.py, 1.15.0)."""
    value = call.kwargs.get("mixed_precision", call.args[2] if len(call.args) > 2 else None)
    return _ENUM.get(value.last, value) if isinstance(value, Dotted) and "PrecisionType." in value else value


def _formats(settings: Settings, call: Call, mode: str, found: list[Finding], loc: Loc) -> Formats:
    plugin = settings.call("FullyShardedDataParallelPlugin")
    on_cpu = call.kwargs.get("cpu") is True
    if mode == "fp16" and on_cpu:
        found.append(Finding("float16-on-cpu", loc, *rows.FLOAT16_ON_CPU))
    if plugin is None:
        formats = mode_formats(mode, float32=on_cpu)
        formats = replace(formats, reductions=Reductions(reduce_dtype=_hook(settings)))
    else:
        fsdp = 2 if plugin.kwargs.get("fsdp_version") == 2 else 1
        policy = policy_of(plugin, fsdp)
        formats = mode_formats(mode, fsdp, policy, float32=on_cpu)
        found.extend(_policy_findings(mode, policy, fsdp))
    autocast = settings.call("AutocastKwargs")
    if autocast and autocast.kwargs.get("enabled") is False and mode != "no" and formats.compute_dtype != "float32":
        found.append(Finding("autocast-off", ("AutocastKwargs", "enabled"), *rows.AUTOCAST_OFF))
        if plugin is None:
            formats = replace(formats, compute_dtype="float32")
    scaler = settings.call("GradScalerKwargs")
    if scaler is not None:
        # Accelerate makes a scaler of these only where mixed_precision is fp16 and the device takes it.
        formats = replace(formats, loss_scale=loss_scale_of(scaler) if formats.loss_scale else None)
    return formats


def _policy_findings(mode: str, policy: Mapping[str, str] | None, fsdp: int) -> Iterator[Finding]:
    if policy is None:
        return
    loc = ("FullyShardedDataParallelPlugin", "mixed_precision_policy")
    inner = policy.get("param_dtype", "float32")
    if mode == "no" and inner != "float32":
        yield Finding("policy-without-mixed-precision", loc, *rows.POLICY_ALONE)
    elif mode in ("fp16", "bf16") and inner != mode_formats(mode).compute_dtype:
        yield Finding("two-precisions", loc, *rows.TWO_PRECISIONS)


def _hook(settings: Settings) -> str:
    handler = settings.call("DistributedDataParallelKwargs")
    given = handler.kwargs.get("comm_hook") if handler else None
    name = given.last if isinstance(given, Dotted) else str(given).upper()
    return next((dtype for dtype, hook in COMM_HOOKS.items() if hook == name), "float32")


def _scaling(settings: Settings) -> Scaling:
    te = settings.call("TERecipeKwargs")
    if te is not None:
        return "mx" if te.kwargs.get("use_mxfp8_block_scaling") is True else "tensorwise"
    ao = settings.call("AORecipeKwargs")
    config = ao.kwargs.get("config") if ao else None
    if isinstance(config, Call) and config.name == "from_recipe_name" and config.args:
        name = config.args[0]
        if name in ("rowwise", "rowwise_with_gw_hp"):
            return "rowwise" if name == "rowwise" else "rowwise_with_gw_hp"
    return "tensorwise"


def _float8(
    formats: Formats, scaling: Scaling, found: list[Finding], loc: Loc, float32_matmul: Any = "ieee"
) -> Reading:
    arguments = {**formats.arguments(), "compute_dtype": _FLOAT8, "scaling": scaling}
    return nearest_plan(**arguments, float32_matmul=float32_matmul, findings=found, loc=loc)

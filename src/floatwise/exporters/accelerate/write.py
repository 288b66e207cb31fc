# SPDX-License-Identifier: Apache-2.0
"""A plan as a configuration file of `accelerate launch`, or as an `Accelerator(...)` with its plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.exporters.accelerate_modes import DEFAULT_SCALE, mode_of
from floatwise.exporters.grad_scaler import grad_scaler_arguments
from floatwise.exporters.python_text import call_text, torch_dtype
from floatwise.exporters.settings import Dotted
from floatwise.exporters.system import Request
from floatwise.exporters.torch_source import nested, tf32_line
from floatwise.plan.dtypes import SIXTEEN_BIT_FORMATS
from floatwise.plan.model import Plan

__all__ = ["COMM_HOOKS", "write"]

COMM_HOOKS: Mapping[str, str] = {"float16": "FP16", "bfloat16": "BF16"}
"""Members of DDPCommunicationHookType by the format that gradients are summed in (accelerate/utils/dataclasses.py,
1.15.0)."""

# From here AORecipeKwargs turns it on by itself (accelerate/utils/dataclasses.py, tags v1.12.0 and v1.13.0).
_FLOAT8_GATHER_SINCE = "1.13"


def write(plan: Plan, request: Request) -> Mapping[str, Any] | str:
    """Returns the values of the file, or source where the form is `python`."""
    return _source(plan, request) if request.form == "python" else _file(plan, request)


def _file(plan: Plan, request: Request) -> Mapping[str, Any]:
    fsdp = request.options["fsdp"]
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if fsdp else "NO",
        "mixed_precision": mode_of(plan.compute_dtype),
    }
    if fsdp:
        values["fsdp_config"] = {"fsdp_version": fsdp}
    if values["mixed_precision"] == "fp8":
        backend = request.options["fp8_backend"]
        values["fp8_config"] = {"backend": backend}
        if backend == "TE" and plan.scaling == "mx":
            values["fp8_config"]["use_mxfp8_block_scaling"] = True
        if fsdp and backend == "AO":
            # `accelerate launch` turns it on, and Accelerator then refuses torchao (accelerator.py, 1.15.0).
            values["fsdp_config"]["fsdp_cpu_ram_efficient_loading"] = False
            values["fp8_config"] |= _no_float8_gather(request)
    return values


def _source(plan: Plan, request: Request) -> str:
    fsdp = request.options["fsdp"]
    mode = mode_of(plan.compute_dtype)
    arguments: dict[str, Any] = {"mixed_precision": mode}
    imports: list[str] = []
    if fsdp:
        plugin = _plugin(plan, fsdp, ao=mode == "fp8" and request.options["fp8_backend"] == "AO")
        arguments["fsdp_plugin"] = nested(call_text("FullyShardedDataParallelPlugin", plugin))
        imports.append("FullyShardedDataParallelPlugin")
    handlers = _handlers(plan, request)
    if handlers:
        arguments["kwargs_handlers"] = Dotted("[\n" + "".join(f"    {nested(text)},\n" for text in handlers) + "]")
        arguments["kwargs_handlers"] = nested(arguments["kwargs_handlers"])
    imports += [text.partition("(")[0] for text in handlers]
    if any("DDPCommunicationHookType" in text for text in handlers):
        imports.append("DDPCommunicationHookType")
    text = call_text("Accelerator", arguments)
    return _imports(imports, text, plan) + f"{tf32_line(plan)}ACCELERATOR = {text}\n"


def _imports(names: list[str], text: str, plan: Plan) -> str:
    lines = ["import torch\n"] if "torch." in text or plan.float32_matmul == "tf32" else []
    lines.append("from accelerate import Accelerator\n")
    if names:
        lines.append(f"from accelerate.utils import {', '.join(sorted(names))}\n")
    if "Float8LinearConfig" in text:
        lines.append("from torchao.float8 import Float8LinearConfig\n")
    return "".join(lines) + "\n"


def _plugin(plan: Plan, fsdp: int, *, ao: bool) -> dict[str, Any]:
    """Returns the plugin's arguments; all three formats of its policy, which a table of them must have."""
    inner = plan.compute_dtype if plan.compute_dtype in ("float32", *SIXTEEN_BIT_FORMATS) else "bfloat16"
    sums = plan.reductions
    last = ("buffer_dtype", sums.buffer_dtype) if fsdp == 1 else ("output_dtype", plan.policy.output_dtype)
    policy = {"param_dtype": inner, "reduce_dtype": sums.reduce_dtype, last[0]: last[1]}
    arguments: dict[str, Any] = {
        "fsdp_version": fsdp,
        "mixed_precision_policy": {key: torch_dtype(dtype) for key, dtype in policy.items()},
    }
    if ao:
        arguments["cpu_ram_efficient_loading"] = False
    return arguments


def _handlers(plan: Plan, request: Request) -> list[str]:
    handlers = []
    scale = plan.loss_scale
    if scale is not None and grad_scaler_arguments(scale) != grad_scaler_arguments(DEFAULT_SCALE):
        handlers.append(call_text("GradScalerKwargs", grad_scaler_arguments(scale)))
    hook = COMM_HOOKS.get(plan.reductions.reduce_dtype)
    if hook and not request.options["fsdp"]:
        member = Dotted(f"DDPCommunicationHookType.{hook}")
        handlers.append(call_text("DistributedDataParallelKwargs", {"comm_hook": member}))
    if plan.scaling is not None:
        handlers.append(_recipe(plan, request))
    return handlers


def _no_float8_gather(request: Request) -> dict[str, bool]:
    """Returns what keeps FSDP1 from gathering weights in float8, on by default and for FSDP2 only.

    With use_orig_params, which `accelerate launch` sets, FSDP1 fails on such weights: "The size of tensor a must match
    the size of tensor b" (measured on torchao 0.18.0).
    """
    wanted = request.options["fsdp"] == 1 and request.version.within(_FLOAT8_GATHER_SINCE, "")
    return {"enable_fsdp_float8_all_gather": False} if wanted else {}


def _recipe(plan: Plan, request: Request) -> str:
    if request.options["fp8_backend"] == "TE":
        return call_text("TERecipeKwargs", {"use_mxfp8_block_scaling": True} if plan.scaling == "mx" else {})
    if plan.scaling == "tensorwise":
        return call_text("AORecipeKwargs", _no_float8_gather(request))
    config = Dotted(f'Float8LinearConfig.from_recipe_name("{plan.scaling}")')
    return call_text("AORecipeKwargs", {"config": config})

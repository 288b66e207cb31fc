# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch read: the module written here by its constants, any other script by its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.errors import BadInputError
from floatwise.exporters.grad_scaler import SCALER_NAMES
from floatwise.exporters.knob import check_knobs
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.torch_amp.constants import CONSTANTS, is_our_module
from floatwise.exporters.torch_amp.write import SCALE_KEYS
from floatwise.exporters.torch_calls import (
    call_loc,
    cast_of_model,
    dtype_of,
    float32_matmul_of,
    scale_of,
)
from floatwise.exporters.torch_regions import compute_of
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.dtypes import STORE_FORMATS
from floatwise.plan.match import check_pattern
from floatwise.plan.model import LossScale, ModulePolicy, Policy, Reductions
from floatwise.plan.problems import PlanProblems, Problem

__all__ = ["read"]

_OLD_SCALER = Text(
    "torch.{device}.amp.GradScaler is deprecated since torch 2.4 and warns.",
    "torch.{device}.amp.GradScaler 自 torch 2.4 起已弃用，会发出警告。",
)
_OLD_SCALER_DO = Text('Write torch.amp.GradScaler("{device}", ...).', '改写为 torch.amp.GradScaler("{device}", ...)。')
_UNSCALE = Text(
    "The weights are float16 and a GradScaler unscales their gradients: step raises ValueError "
    '"Attempting to unscale FP16 gradients."',
    '权重为 float16，而 GradScaler 要还原其梯度：step 会抛出 ValueError "Attempting to unscale FP16 gradients."',
)
_UNSCALE_DO = Text(
    "Keep the model in float32 and compute in float16 by autocast.", "让模型保持 float32，用 autocast 以 float16 计算。"
)


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan of a script.

    Raises:
      SettingsProblems: Its values contradict each other, or would only be known when run.
    """
    return _read_module(settings, version) if is_our_module(settings) else _read_script(settings)


def _read_script(settings: Settings) -> Reading:
    cast = cast_of_model(settings)
    if cast and cast.dtype not in STORE_FORMATS:
        raise SettingsProblems([Problem(cast.loc, f"got {cast.dtype}, which no plan has; write torch.float32")])
    stored = cast.dtype if cast else "float32"
    region = compute_of(settings, stored)
    findings = [*region.findings, *_scaler_findings(settings, stored)]
    return nearest_plan(
        compute_dtype=region.dtype,
        param_dtype=stored,
        output_dtype=region.dtype,
        reductions=Reductions(reduce_dtype=stored, accumulate_dtype=stored, buffer_dtype=stored),
        loss_scale=scale_of(settings, float16="float16" in (region.dtype, stored)),
        float32_matmul=float32_matmul_of(settings),
        findings=findings,
        loc=cast.loc if cast and stored != "float32" else region.loc,
    )


def _scaler_findings(settings: Settings, stored: str) -> list[Finding]:
    found: list[Finding] = []
    calls = [call for call in settings.calls if call.name in SCALER_NAMES]
    for call in calls[:1]:
        device = next((d for d in ("cuda", "cpu") if call.dotted.endswith(f"{d}.amp.GradScaler")), "")
        if device:
            texts = (
                Text(t.en.format(device=device), t.zh.format(device=device)) for t in (_OLD_SCALER, _OLD_SCALER_DO)
            )
            found.append(Finding("deprecated-scaler", call_loc(settings, call), *texts))
        if stored == "float16" and call.kwargs.get("enabled") is not False:
            found.append(Finding("unscale-float16", call_loc(settings, call), _UNSCALE, _UNSCALE_DO))
    return found


def _read_module(settings: Settings, version: Version) -> Reading:
    problems = list(check_knobs(settings, CONSTANTS, version, closed=("LOSS_SCALE",), title="this module"))
    entries = settings.get("MODULES", default=[])
    entries = entries if isinstance(entries, list) else []
    problems += [Problem(("MODULES",), why) for row in entries if (why := _fault(row))]
    if problems:
        raise SettingsProblems(problems)
    compute = dtype_of(settings.get("COMPUTE_DTYPE")) or "float32"
    modules = [
        ModulePolicy(
            module=glob,
            policy=Policy(compute_dtype=dtype_of(low) or "float32", output_dtype=dtype_of(out) or "float32"),
            reason=why,
        )
        for glob, low, out, why in entries
    ]
    return nearest_plan(
        compute_dtype=compute,
        output_dtype=dtype_of(settings.get("OUTPUT_DTYPE")) or "float32",
        loss_scale=_scale(settings.get("LOSS_SCALE")),
        float32_matmul=settings.get("FLOAT32_MATMUL"),
        modules=modules,
        loc=("COMPUTE_DTYPE",),
    )


def _fault(row: Any) -> str | None:
    if not (isinstance(row, list) and len(row) == 4 and isinstance(row[0], str) and isinstance(row[3], str)):
        return f"got {row!r}, expected (glob, format it computes in, format it hands on, why)"
    if any(dtype_of(value) not in STORE_FORMATS for value in row[1:3]):
        return f"got {row[1]} and {row[2]} for {row[0]!r}, expected torch.float32, torch.float16 or torch.bfloat16"
    try:
        check_pattern(row[0])
    except BadInputError as error:
        return str(error)
    return None


def _scale(values: Any) -> LossScale | None:
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise SettingsProblems([Problem(("LOSS_SCALE",), f"got {values!r}, expected None or a table of numbers")])
    fields = {key: values[key] for key in SCALE_KEYS if key in values}
    for key in ("initial_scale", "growth_factor", "backoff_factor", "floor", "ceiling"):
        if key in fields:
            fields[key] = float(fields[key])
    try:
        return LossScale(**fields, growth="fixed")
    except PlanProblems as error:
        raise SettingsProblems([Problem(("LOSS_SCALE", *p.loc), p.text) for p in error.problems]) from None

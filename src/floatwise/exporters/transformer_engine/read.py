# SPDX-License-Identifier: Apache-2.0
"""Source that uses TransformerEngine's recipes as the nearest plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.transformer_engine.knobs import RECIPES
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.problems import Loc, Problem
from floatwise.plan.recipe_table import Scaling

__all__ = ["read", "recognises"]

_SCALING: Mapping[str, Scaling] = {
    "DelayedScaling": "tensorwise",
    "Float8CurrentScaling": "tensorwise",
    "Float8BlockScaling": "rowwise",
    "MXFP8BlockScaling": "mx",
}

_NO_PLAN = {
    "NVFP4BlockScaling": "its 4-bit operands are in no plan",
    "CustomRecipe": "what it does is known only when it runs",
}

_DELAYED = Text(
    "Scale factors come from the largest magnitudes of earlier steps: a tensor that grows suddenly saturates for a "
    "step. The plan given here scales by the tensor itself.",
    "缩放因子来自之前若干步的最大值：张量突然变大时该步会饱和。这里给出的计划按张量自身缩放。",
)
_DELAYED_DO = Text("Use Float8CurrentScaling.", "使用 Float8CurrentScaling。")

_BY_DEVICE = Text(
    "No recipe is given, so the device decides: MXFP8 on compute capability 10.x, DelayedScaling below, and "
    "Float8CurrentScaling on 12.x. The plan given here is tensorwise.",
    "没有给出配方，由设备决定：计算能力 10.x 用 MXFP8，更低用 DelayedScaling，12.x 用 Float8CurrentScaling。"
    "这里给出的计划为 tensorwise。",
)
_BY_DEVICE_DO = Text("Give the recipe.", "请明确给出配方。")

_NO_AUTOCAST = Text(
    "There is no torch.autocast to bfloat16 in this source: TransformerEngine's modules then take inputs in their "
    "weights' format, and all other modules compute in it.",
    "该源码中没有 bfloat16 的 torch.autocast：TransformerEngine 的模块按权重的格式接收输入，其他模块也以该格式计算。",
)
_NO_AUTOCAST_DO = Text(
    'Run forward under torch.autocast("cuda", dtype=torch.bfloat16) as well.',
    '同时在 torch.autocast("cuda", dtype=torch.bfloat16) 内运行前向。',
)


def recognises(settings: Settings) -> float:
    """Returns how surely the source is TransformerEngine's."""
    if any(settings.call(name) for name in (*RECIPES, *_NO_PLAN)):
        return 0.95
    return 0.9 if _context(settings) else 0.0


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan of a source.

    Raises:
      SettingsProblems: There is no recipe and no context of TransformerEngine in it, or one that no plan can name.
    """
    for name, why in _NO_PLAN.items():
        if settings.call(name):
            raise SettingsProblems([Problem((name,), f"no plan stands for this recipe: {why}")])
    context = _context(settings)
    recipe = next((call for call in settings.calls if call.name in RECIPES), None)
    if recipe is None and context is None:
        raise SettingsProblems([Problem((), "there is no recipe and no fp8_autocast(...) in this source")])
    stored = "bfloat16" if _stored_in_bfloat16(settings) else "float32"
    tf32 = settings.call("set_float32_matmul_precision")
    findings = list(_findings(settings, recipe, stored))
    if context is not None and context.kwargs.get("enabled") is False:
        return nearest_plan(compute_dtype="bfloat16", param_dtype=stored, output_dtype="bfloat16", findings=findings)
    if recipe is not None:
        _check_format(recipe)
    return nearest_plan(
        compute_dtype="float8_e4m3fn",
        param_dtype=stored,
        output_dtype="bfloat16",
        scaling=_SCALING[recipe.name] if recipe else "tensorwise",
        float32_matmul="tf32" if tf32 and tf32.args and tf32.args[0] in ("high", "medium") else "ieee",
        findings=findings,
        loc=(recipe.name,) if recipe else (),
    )


def _findings(settings: Settings, recipe: Call | None, stored: str) -> Iterator[Finding]:
    loc: Loc = (recipe.name,) if recipe else ()
    if recipe is None:
        yield Finding("recipe-by-device", loc, _BY_DEVICE, _BY_DEVICE_DO)
    elif recipe.name == "DelayedScaling":
        yield Finding("delayed-scaling", loc, _DELAYED, _DELAYED_DO)
    plain = any(c.name == "autocast" and _dtype(c.kwargs.get("dtype")) == "bfloat16" for c in settings.calls)
    if not plain and stored == "float32":
        yield Finding("float8-without-autocast", loc, _NO_AUTOCAST, _NO_AUTOCAST_DO)


def _check_format(recipe: Call) -> None:
    value = recipe.kwargs.get("fp8_format")
    name = value.last if isinstance(value, Dotted) else None
    if name is not None and name.isupper() and name not in ("HYBRID", "E4M3"):
        text = f"got {value}, expected Format.HYBRID or Format.E4M3; e5m2 alone has two mantissa bits and is refused"
        raise SettingsProblems([Problem((recipe.name, "fp8_format"), text)])


def _context(settings: Settings) -> Call | None:
    """Returns the context of TransformerEngine: `fp8_autocast`, or `te.autocast`, which torch's has not its words."""
    for call in settings.calls:
        if call.name == "fp8_autocast":
            return call
        if call.name == "autocast" and (
            "recipe" in call.kwargs or call.dotted.startswith(("te.", "transformer_engine."))
        ):
            return call
    return None


def _stored_in_bfloat16(settings: Settings) -> bool:
    return any(_dtype(call.kwargs.get("params_dtype")) == "bfloat16" for call in settings.calls)


def _dtype(value: Any) -> str:
    return value.last if isinstance(value, Dotted) else ""

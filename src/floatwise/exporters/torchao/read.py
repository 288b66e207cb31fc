# SPDX-License-Identifier: Apache-2.0
"""Source that uses torchao's float8 training as the nearest plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatwise.errors import BadInputError
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.torchao.knobs import RECIPES
from floatwise.exporters.torchao.write import NOT_FLOAT8
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.match import check_pattern
from floatwise.plan.model import ModulePolicy, Policy
from floatwise.plan.problems import Problem
from floatwise.plan.recipe_table import Scaling

__all__ = ["read", "recognises"]

_CALLS = ("convert_to_float8_training", "Float8LinearConfig", "from_recipe_name", "MXFP8TrainingOpConfig")

_NO_AUTOCAST = Finding(
    "float8-without-autocast",
    ("convert_to_float8_training",),
    Text(
        "There is no autocast to bfloat16 in this source: what is not multiplied in float8 computes in the weights' "
        "format, which is float32 unless the model was cast.",
        "该源码中没有 bfloat16 的 autocast：不用 float8 相乘的部分以权重的格式计算，除非转换过模型，否则为 float32。",
    ),
    Text(
        "Run forward under torch.autocast(device, dtype=torch.bfloat16).", "在 bfloat16 的 torch.autocast 内运行前向。"
    ),
)
_NO_FILTER = Finding(
    "float8-without-filter",
    ("convert_to_float8_training",),
    Text(
        "Every linear layer is converted, also those whose sizes are no multiples of 16, which fail on the GPU though "
        "not on the CPU, and subclasses of Linear, which lose their own forward.",
        "所有线性层都会被转换，包括尺寸不是 16 的倍数的层（在 GPU 上报错，在 CPU 上不报错），以及 Linear 的子类"
        "（丢失自己的 forward）。",
    ),
    Text("Give a module_filter_fn that tests the sizes.", "给出检查尺寸的 module_filter_fn。"),
)
_UNKNOWN_FILTER = Finding(
    "unknown-filter",
    ("convert_to_float8_training", "module_filter_fn"),
    Text(
        "Which modules the filter leaves out is known only when it runs; the plan given here names none.",
        "过滤函数排除哪些模块只有运行时才知道；这里给出的计划没有列出任何模块。",
    ),
    Text("Add the modules to [[modules]] by hand.", "请手动把这些模块写入 [[modules]]。"),
)


def recognises(settings: Settings) -> float:
    """Returns how surely the source is torchao's: its names are no one else's."""
    return 0.95 if any(settings.call(name) for name in _CALLS) or _mx(settings) else 0.0


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan of a source.

    Raises:
      SettingsProblems: There is no float8 training in it, or its recipe is none of torchao's.
    """
    scaling = _scaling(settings)
    findings = list(_findings(settings, scaling))
    stored = "bfloat16" if _cast_to_bfloat16(settings) else "float32"
    return nearest_plan(
        compute_dtype="float8_e4m3fn",
        param_dtype=stored,
        output_dtype="bfloat16",
        scaling=scaling,
        float32_matmul="tf32" if _tf32(settings) else "ieee",
        modules=_modules(settings, stored),
        findings=findings,
        loc=("convert_to_float8_training",),
    )


def _findings(settings: Settings, scaling: Scaling) -> Iterator[Finding]:
    autocast = any(c.name == "autocast" and _dtype(c.kwargs.get("dtype", _second(c))) for c in settings.calls)
    if not autocast and not _cast_to_bfloat16(settings):
        yield _NO_AUTOCAST
    convert = settings.call("convert_to_float8_training")
    if convert is None or NOT_FLOAT8 in settings.values:
        return
    given = convert.kwargs.get("module_filter_fn")
    yield _NO_FILTER if given is None else _UNKNOWN_FILTER


def _scaling(settings: Settings) -> Scaling:
    if _mx(settings):
        return "mx"
    named = settings.call("from_recipe_name")
    if named is not None:
        return _named(named)
    config = settings.call("Float8LinearConfig")
    if config is None and settings.call("convert_to_float8_training") is None:
        raise SettingsProblems([Problem((), "there is no call of convert_to_float8_training(...) in this source")])
    return _configured(config.kwargs if config else {})


def _named(call: Call) -> Scaling:
    value = call.args[0] if call.args else call.kwargs.get("recipe_name")
    name = value.last.lower() if isinstance(value, Dotted) else value
    scaling: Scaling | None = next((r for r in RECIPES if r == name), None)
    if scaling is None:
        allowed = " or ".join(f'"{r}"' for r in RECIPES)
        raise SettingsProblems([Problem((call.name,), f"got the recipe {value!r}, expected {allowed}")])
    return scaling


def _configured(values: Mapping[str, Any]) -> Scaling:
    def names(key: str, argument: str) -> str:
        cast = values.get(key)
        value = cast.kwargs.get(argument) if isinstance(cast, Call) else None
        return value.last if isinstance(value, Dotted) else ""

    if names("cast_config_weight", "scaling_granularity") != "AXISWISE":
        return "tensorwise"
    high = names("cast_config_input_for_grad_weight", "scaling_type") == "DISABLED"
    return "rowwise_with_gw_hp" if high else "rowwise"


def _mx(settings: Settings) -> bool:
    return any(
        call.name == "MXFP8TrainingOpConfig" or call.dotted.endswith("MXFP8TrainingOpConfig.from_recipe")
        for call in settings.calls
    )


def _modules(settings: Settings, stored: str) -> tuple[ModulePolicy, ...]:
    globs = settings.values.get(NOT_FLOAT8)
    if not isinstance(globs, Mapping):
        return ()
    policy = Policy(param_dtype=stored, compute_dtype="bfloat16", output_dtype="bfloat16")
    try:
        for glob in globs:
            check_pattern(glob)
    except BadInputError as error:
        raise SettingsProblems([Problem((NOT_FLOAT8,), str(error))]) from None
    return tuple(ModulePolicy(module=glob, policy=policy) for glob in globs)


def _cast_to_bfloat16(settings: Settings) -> bool:
    """Returns whether a model is cast: `model.bfloat16()` or `model.to(torch.bfloat16)`, which stores weights so."""
    for call in settings.calls:
        if call.name == "bfloat16" and "." in call.dotted and not call.args:
            return True
        if call.name == "to" and "bfloat16" in {_dtype(v) for v in (*call.args, call.kwargs.get("dtype"))}:
            if call.dotted.partition(".")[0] in ("model", "net", "network", "self"):
                return True
    return False


def _tf32(settings: Settings) -> bool:
    call = settings.call("set_float32_matmul_precision")
    return call is not None and bool(call.args) and call.args[0] in ("high", "medium")


def _second(call: Call) -> Any:
    return call.args[1] if len(call.args) > 1 else None


def _dtype(value: object) -> str:
    return value.last if isinstance(value, Dotted) else ""

# SPDX-License-Identifier: Apache-2.0
"""Source that sets Keras' policies as the nearest plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from floatwise.errors import BadInputError, nearest_names
from floatwise.exporters.keras.knobs import DEFAULT_GROWTH_STEPS, DEFAULT_SCALE, KERAS_3
from floatwise.exporters.keras.write import MODULES
from floatwise.exporters.nearest import NO_CEILING, NO_FLOOR, nearest_plan
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.match import check_pattern
from floatwise.plan.model import LossScale, ModulePolicy, Policy
from floatwise.plan.problems import Loc, Problem

__all__ = ["read", "recognises"]

_SETTERS = ("set_dtype_policy", "set_global_policy", "set_policy")
_POLICIES = {
    "float32": ("float32", "float32"),
    "mixed_bfloat16": ("float32", "bfloat16"),
    "mixed_float16": ("float32", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "float16": ("float16", "float16"),
}

_NO_SCALE_ADDED = Text(
    "compile() wraps the optimizer only where the model's policy is named mixed_float16, which it is not here: nothing "
    "scales the loss.",
    "只有模型策略名为 mixed_float16 时 compile() 才会包装优化器，这里不是：损失没有被缩放。",
)
_NO_SCALE_DO = Text("Wrap the optimizer in LossScaleOptimizer yourself.", "请自行用 LossScaleOptimizer 包装优化器。")
_TWICE = Text(
    "LossScaleOptimizer is wrapped in another: gradients are divided by both scales, so that updates shrink by the "
    "second (32768 at first). Keras 3 accepts it.",
    "LossScaleOptimizer 被再次包装：梯度被两个系数相除，更新缩小为第二个系数分之一（最初为 32768）。Keras 3 不会报错。",
)
_TWICE_DO = Text("Wrap the optimizer once.", "只包装一次。")
_SOFTMAX = Text(
    "A softmax computes in float16: where it is sure and wrong, its gradient is zero or NaN behind a finite loss.",
    "softmax 以 float16 计算：当预测确信但错误时，损失有限而梯度为零或 NaN。",
)
_SOFTMAX_DO = Text('Give this layer dtype="float32".', '给该层设置 dtype="float32"。')


def recognises(settings: Settings) -> float:
    """Returns how surely the source is Keras'."""
    if any(_setter(settings)) or settings.call("DTypePolicyMap"):
        return 0.9
    return 0.6 if settings.call("LossScaleOptimizer") or settings.call("set_floatx") else 0.0


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan of a source.

    Raises:
      SettingsProblems: It sets no policy, or one that Keras does not know or no plan can name.
    """
    name, loc = _policy(settings)
    param, compute = _POLICIES[name]
    new = version.within(KERAS_3, "")
    scale, findings = _scale(settings, name, compute, new)
    if compute == "float16" and _softmax_in_float16(settings):
        findings.append(Finding("softmax-in-float16", loc, _SOFTMAX, _SOFTMAX_DO))
    output = "float32" if any(call.kwargs.get("dtype") == "float32" for call in settings.calls) else compute
    return nearest_plan(
        compute_dtype=compute,
        param_dtype=param,
        output_dtype=output,
        loss_scale=scale,
        modules=tuple(_modules(settings, param)),
        findings=findings,
        loc=loc,
    )


def _setter(settings: Settings) -> Iterator[Call]:
    # Haiku's set_policy takes a module and a policy.
    return (call for call in settings.calls if call.name in _SETTERS and len(call.args) < 2)


def _policy(settings: Settings) -> tuple[str, Loc]:
    """Returns the name of the default policy and where it is."""
    for call in _setter(settings):
        given = call.args[0] if call.args else call.kwargs.get("policy")
        return _known(_name(settings, given), (call.name,)), (call.name,)
    floatx = settings.call("set_floatx")
    if floatx is not None and floatx.args:
        return _known(floatx.args[0], ("set_floatx",)), ("set_floatx",)
    raise SettingsProblems([Problem((), "there is no call of set_dtype_policy(...) in this source")])


def _name(settings: Settings, given: Any) -> Any:
    """Returns the name in `"name"`, `DTypePolicy("name")`, `DTypePolicyMap("name", ...)`, or a variable of one."""
    if isinstance(given, Call):
        inner = given.args[0] if given.args else given.kwargs.get("name", given.kwargs.get("default_policy"))
        return _name(settings, inner)
    return given


def _known(name: Any, loc: Loc) -> str:
    if isinstance(name, str) and not isinstance(name, Dotted) and name in _POLICIES:
        return name
    near = nearest_names(name, _POLICIES) if isinstance(name, str) else []
    offer = f"; did you mean {near[0]!r}?" if near else ""
    allowed = ", ".join(repr(n) for n in _POLICIES)
    shown = "a policy known only when run" if not isinstance(name, str) or isinstance(name, Dotted) else repr(name)
    raise SettingsProblems([Problem(loc, f"got {shown}, expected one of {allowed}{offer}")])


def _scale(settings: Settings, name: str, compute: str, new: bool) -> tuple[LossScale | None, list[Finding]]:
    wrapped = [call for call in settings.calls if call.name == "LossScaleOptimizer"]
    findings = []
    if any(isinstance(arg, Call) and arg.name == "LossScaleOptimizer" for call in wrapped for arg in _inner(call)):
        findings.append(Finding("scaled-twice", ("LossScaleOptimizer",), _TWICE, _TWICE_DO))
    if wrapped:
        return _scale_of(wrapped[0], new), findings
    if compute != "float16":
        return None, findings
    compiled = settings.call("compile")
    off = compiled is not None and compiled.kwargs.get("auto_scale_loss") is False
    if name == "mixed_float16" and not settings.call("DTypePolicyMap") and not off:
        return _scale_of(Call("LossScaleOptimizer", (), {}, 1), new), findings
    findings.append(Finding("no-scale-added", ("DTypePolicyMap",), _NO_SCALE_ADDED, _NO_SCALE_DO))
    return None, findings


def _inner(call: Call) -> tuple[Any, ...]:
    return (*call.args[:1], call.kwargs.get("inner_optimizer"))


def _scale_of(call: Call, new: bool) -> LossScale:
    """Returns the scale of a LossScaleOptimizer: it doubles and halves; only Keras 2 has a floor, of 1."""
    initial = call.kwargs.get("initial_scale")
    steps = call.kwargs.get("dynamic_growth_steps")
    start = float(initial) if isinstance(initial, int | float) else DEFAULT_SCALE
    floor = NO_FLOOR if new else min(1.0, start)
    if call.kwargs.get("dynamic") is False:
        return LossScale(mode="static", initial_scale=start, growth="fixed", floor=floor, ceiling=NO_CEILING)
    return LossScale(
        initial_scale=start,
        growth_interval=steps if isinstance(steps, int) else DEFAULT_GROWTH_STEPS,
        growth="fixed",
        floor=floor,
        ceiling=NO_CEILING,
    )


def _softmax_in_float16(settings: Settings) -> bool:
    def is_softmax(call: Call) -> bool:
        named = call.args[0] if call.name == "Activation" and call.args else call.kwargs.get("activation")
        return call.name == "Softmax" or named == "softmax"

    return any(is_softmax(call) and "dtype" not in call.kwargs for call in settings.calls)


def _modules(settings: Settings, param: str) -> Iterator[ModulePolicy]:
    for glob, name in _entries(settings):
        if name not in _POLICIES:
            _known(name, (MODULES, glob))
        try:
            check_pattern(glob)
        except BadInputError as error:
            raise SettingsProblems([Problem((MODULES,), str(error))]) from None
        stored, compute = _POLICIES[name]
        yield ModulePolicy(module=glob, policy=Policy(param_dtype=stored, compute_dtype=compute, output_dtype=compute))


def _entries(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yields globs and names of policies, of our constant or of a map that is written out."""
    ours = settings.values.get(MODULES)
    if isinstance(ours, Mapping):
        yield from ((str(glob), value[1]) for glob, value in ours.items() if isinstance(value, list) and len(value) > 1)
        return
    given = settings.call("DTypePolicyMap")
    if given is None:
        return
    table = given.args[1] if len(given.args) > 1 else given.kwargs.get("policy_map")
    for path, policy in table.items() if isinstance(table, Mapping) else ():
        if isinstance(path, str) and (glob := _glob(path)) is not None:
            yield glob, _name(settings, policy)


def _glob(path: str) -> str | None:
    """Returns the glob of a path, or of a path that ends in `/.*`; None for other regular expressions."""
    stem, _, _ = path.partition("/.*")
    if path not in (stem, f"{stem}/.*") or re.search(r"[\\^$*+?()\[\]{}|.]", stem):
        return None
    names = stem.replace("/", ".")
    return names if path == stem else f"{names}.**"

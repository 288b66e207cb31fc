# SPDX-License-Identifier: Apache-2.0
"""Source for JAX as the nearest plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from floatwise.errors import BadInputError
from floatwise.exporters.jax.knobs import MATMUL_PRECISIONS
from floatwise.exporters.jax.policy_string import PolicyString, is_policy_string, parse_policy_string
from floatwise.exporters.jax.write import MODULES
from floatwise.exporters.nearest import NO_CEILING, NO_FLOOR, nearest_plan
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.dtypes import STORE_FORMATS
from floatwise.plan.match import check_pattern
from floatwise.plan.model import LossScale, ModulePolicy, Policy
from floatwise.plan.problems import Loc, PlanProblems, Problem

__all__ = ["read", "recognises"]

_HALF = Text(
    'jmp takes "half" for bfloat16 on a TPU and for float16 anywhere else, where gradients then need a loss scale. The '
    "plan given here is float16.",
    'jmp 在 TPU 上把 "half" 当作 bfloat16，在其他设备上当作 float16，此时梯度需要损失缩放。这里给出的计划为 float16。',
)
_HALF_DO = Text("Write bfloat16 or float16.", "请写 bfloat16 或 float16。")
_REFUSED = Text(
    "jmp.get_policy refuses this text: it takes no spaces, and knows float32, bfloat16, float16, f32, bf16, f16, full "
    "and half.",
    "jmp.get_policy 不接受该文本：不能有空格，只认识 float32、bfloat16、float16、f32、bf16、f16、full 和 half。",
)
_REFUSED_DO = Text("Write it without spaces, names in full.", "去掉空格，名称写全。")
_BY_DEVICE = Text(
    "jax_default_matmul_precision is not set: float32 products use TF32 on GPUs that have it and bfloat16 on TPUs. The "
    "plan given here says tf32.",
    "没有设置 jax_default_matmul_precision：float32 乘法在支持的 GPU 上使用 TF32，在 TPU 上使用 bfloat16。"
    "这里给出的计划为 tf32。",
)
_BY_DEVICE_DO = Text(
    'Call jax.config.update("jax_default_matmul_precision", "float32"), or "tensorfloat32".',
    '调用 jax.config.update("jax_default_matmul_precision", "float32") 或 "tensorfloat32"。',
)


def recognises(settings: Settings) -> float:
    """Returns how surely the source is JAX's."""
    if _policy_text(settings) is not None or any(settings.call(n) for n in ("DynamicScale", "DynamicLossScale")):
        return 0.9
    if _made_policy(settings) is not None:
        return 0.9
    return 0.8 if _flax_dtypes(settings) is not None or _matmul(settings) is not None else 0.0


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan of a source.

    Raises:
      SettingsProblems: It names no formats, or one that is none of jmp's or JAX's.
    """
    policy, loc = _policy(settings)
    matmul = _matmul(settings)
    if matmul is not None and matmul not in MATMUL_PRECISIONS:
        allowed = ", ".join(f'"{name}"' for name in MATMUL_PRECISIONS)
        text = f'got "{matmul}" for jax_default_matmul_precision, which no plan can name; expected one of {allowed}'
        raise SettingsProblems([Problem(("update",), text)])
    findings = [
        Finding(code, loc, what, do)
        for applies, code, what, do in (
            (policy.has_half, "half-by-device", _HALF, _HALF_DO),
            (policy.jmp_refuses, "jmp-refuses", _REFUSED, _REFUSED_DO),
            (matmul is None, "matmul-by-device", _BY_DEVICE, _BY_DEVICE_DO),
        )
        if applies
    ]
    ieee = MATMUL_PRECISIONS.get(matmul or "default") == "ieee"
    float32_matmul: Literal["ieee", "tf32"] = "ieee" if ieee else "tf32"
    return nearest_plan(
        compute_dtype=policy.compute_dtype,
        param_dtype=policy.param_dtype,
        output_dtype=policy.output_dtype,
        loss_scale=_loss_scale(settings),
        float32_matmul=float32_matmul,
        modules=tuple(_modules(settings, policy.param_dtype)),
        findings=findings,
        loc=loc,
    )


def _policy(settings: Settings) -> tuple[PolicyString, Loc]:
    found = _policy_text(settings)
    if found is not None:
        text, loc = found
        try:
            return parse_policy_string(text), loc
        except BadInputError as error:
            raise SettingsProblems([Problem(loc, str(error))]) from None
    made = _made_policy(settings)
    if made is not None:
        return made
    dtypes = _flax_dtypes(settings)
    if dtypes is None:
        raise SettingsProblems([Problem((), "there is no policy string and no dtype= of a Flax module in this source")])
    param, compute, loc = dtypes
    return PolicyString(param, compute, compute), loc


def _made_policy(settings: Settings) -> tuple[PolicyString, Loc] | None:
    """Returns what `jmp.Policy(param_dtype, compute_dtype, output_dtype)` says; None where it is not literal."""
    names = ("param_dtype", "compute_dtype", "output_dtype")
    for call in settings.calls:
        if call.name == "Policy":
            values = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
            dtypes = [_jax_dtype(values.get(name)) for name in names]
            if all(dtype in STORE_FORMATS for dtype in dtypes):
                return PolicyString(dtypes[0], dtypes[1], dtypes[2]), ("Policy",)
    return None


def _policy_text(settings: Settings) -> tuple[str, Loc] | None:
    """Returns the first policy string: of a constant, or given to jmp.get_policy."""
    for name, value in settings.values.items():
        if isinstance(value, str) and not isinstance(value, Dotted) and is_policy_string(value):
            return value, (name,)
    call = settings.call("get_policy")
    if call is not None and call.args and isinstance(call.args[0], str) and not isinstance(call.args[0], Dotted):
        return call.args[0], ("get_policy",)
    return None


def _flax_dtypes(settings: Settings) -> tuple[str, str, Loc] | None:
    """Returns weights' and arithmetic's format of the first module that is given `dtype=jnp.<format>`."""
    for call in settings.calls:
        dtype, param = call.kwargs.get("dtype"), call.kwargs.get("param_dtype")
        if _jax_dtype(dtype) in STORE_FORMATS and (call.name[:1].isupper() or _jax_dtype(param)):
            return _jax_dtype(param) or "float32", _jax_dtype(dtype), (call.name, "dtype")
    return None


def _jax_dtype(value: Any) -> str:
    """Returns `bfloat16` for `jnp.bfloat16`; an empty text for all else."""
    is_jax = isinstance(value, Dotted) and value.startswith(("jnp.", "jax.numpy."))
    return value.last if is_jax else ""


def _matmul(settings: Settings) -> str | None:
    for call in settings.calls:
        if call.name == "update" and call.args[:1] == ("jax_default_matmul_precision",) and len(call.args) > 1:
            return call.args[1] if isinstance(call.args[1], str) else "default"
        if call.name == "default_matmul_precision" and call.args and isinstance(call.args[0], str):
            return call.args[0]
    return None


def _loss_scale(settings: Settings) -> LossScale | None:
    flax, jmp, static = (settings.call(n) for n in ("DynamicScale", "DynamicLossScale", "StaticLossScale"))
    if flax is not None:
        return _flax_scale(flax)
    if jmp is not None:
        factor = _number(jmp.kwargs.get("factor"), 2.0)
        return _made(
            jmp,
            initial_scale=_number(jmp.args[0] if jmp.args else jmp.kwargs.get("loss_scale"), 2.0**15),
            growth_factor=factor,
            backoff_factor=1 / factor,
            growth_interval=int(_number(jmp.kwargs.get("period"), 2000)),
            floor=1.0,
        )
    if static is not None:
        value = _number(static.args[0] if static.args else static.kwargs.get("loss_scale"), 2.0**15)
        return _made(static, mode="static", initial_scale=value, floor=min(value, 1.0))
    return None


def _flax_scale(call: Call) -> LossScale:
    names = {"scale": "initial_scale", "minimum_scale": "floor"}
    same = ("growth_factor", "backoff_factor", "growth_interval")
    fields = {names.get(key, key): value for key, value in call.kwargs.items() if key in (*names, *same)}
    numbers = {key: value for key, value in fields.items() if isinstance(value, int | float)}
    floats = {key: value if key == "growth_interval" else float(value) for key, value in numbers.items()}
    return _made(call, **{"floor": NO_FLOOR, **floats})


def _made(call: Call, **fields: Any) -> LossScale:
    try:
        return LossScale(**fields, growth="fixed", ceiling=NO_CEILING)
    except PlanProblems as error:
        raise SettingsProblems([Problem((call.name, *p.loc), p.text) for p in error.problems]) from None


def _number(value: Any, default: float) -> float:
    """Returns a number as it is or in `jnp.float32(...)`, as jmp wants scales."""
    if isinstance(value, Call) and value.args:
        return _number(value.args[0], default)
    return float(value) if isinstance(value, int | float) else default


def _modules(settings: Settings, param_dtype: str) -> Iterator[ModulePolicy]:
    table = settings.values.get(MODULES)
    for glob, value in table.items() if isinstance(table, Mapping) else ():
        dtype = value[1] if isinstance(value, list) and len(value) > 1 else None
        if not isinstance(glob, str) or not isinstance(dtype, Dotted) or dtype.last not in STORE_FORMATS:
            continue
        try:
            check_pattern(glob)
        except BadInputError as error:
            raise SettingsProblems([Problem((MODULES,), str(error))]) from None
        policy = Policy(param_dtype=param_dtype, compute_dtype=dtype.last, output_dtype=dtype.last)
        yield ModulePolicy(module=glob, policy=policy)

# SPDX-License-Identifier: Apache-2.0
"""A plan as source that sets Keras' policies and wraps the optimizer."""

from __future__ import annotations

from floatwise.exporters.glob_source import glob_regex, literal_glob, regex_text
from floatwise.exporters.keras.knobs import CONFIG_SINCE, KERAS_3, MAP_SINCE
from floatwise.exporters.python_text import value_text
from floatwise.exporters.system import Request
from floatwise.language import Text
from floatwise.plan.match import ROOT
from floatwise.plan.model import LossScale, ModulePolicy, Plan

__all__ = ["MODULES", "NEVER", "policy_name", "write"]

MODULES = "MODULES"
"""The constant that holds the plan's globs, each with its regular expression and policy."""

NEVER = 2**31 - 1
"""Growth steps that no training reaches: the optimizer counts in int32 on the JAX and torch backends."""

_USE = Text(
    "# Import this before the first layer is made: a layer takes the policy of that moment.\n",
    "# 在创建第一个层之前导入本文件：层会采用创建时的策略。\n",
)
_ROOT = Text(
    "# Layers of a Sequential or a subclassed model have its name before their path: write it here with a slash. For\n"
    "# keras.Model(inputs, outputs) leave it empty. To see them:\n"
    "# [(layer.path, layer.compute_dtype) for layer in model._flatten_layers()]\n",
    "# Sequential 或子类模型的层路径以模型名开头：请在此写上模型名和斜杠。keras.Model(inputs, outputs) 则留空。\n"
    "# 查看方法：[(layer.path, layer.compute_dtype) for layer in model._flatten_layers()]\n",
)
_GLOBS = Text(
    "# The plan's glob, the same as a regular expression over Keras' paths, and the policy.\n",
    "# 计划中的通配符、对应 Keras 路径的正则表达式，以及策略。\n",
)
_OUTPUT = Text(
    "# keras.Model(inputs, in_float32(outputs)): the loss, and any softmax before it, see float32.\n",
    "# keras.Model(inputs, in_float32(outputs))：损失及其之前的 softmax 都以 float32 计算。\n",
)
_SCALED = Text(
    "# model.compile(optimizer=scaled(optimizer), ...): compile() wraps no optimizer a second time; clipping belongs\n"
    "# to the inner optimizer.\n",
    "# model.compile(optimizer=scaled(optimizer), ...)：compile() 不会再次包装；梯度裁剪应设在内层优化器上。\n",
)

_MAP = """\
POLICY = keras.dtype_policies.DTypePolicyMap(
    default_policy={default},
    policy_map={{ROOT + regex: keras.DTypePolicy(name) for regex, name in MODULES.values()}},
)
keras.config.set_dtype_policy(POLICY)
"""
_MAP_SEARCHED = """\
POLICY = keras.dtype_policies.DTypePolicyMap(
    default_policy={default},
    policy_map={{f"^{{ROOT}}(?:{{regex}})$": keras.DTypePolicy(name) for regex, name in MODULES.values()}},
)
keras.config.set_dtype_policy(POLICY)
"""


def policy_name(compute_dtype: str) -> str:
    """Returns the policy that computes in a format and keeps float32 variables."""
    return "float32" if compute_dtype == "float32" else f"mixed_{compute_dtype}"


def write(plan: Plan, request: Request) -> str:
    """Returns the source for a plan of 16 bits or float32."""
    version = request.version
    new = version.within(KERAS_3, "")
    text = ("import keras\n" if new else "from tensorflow import keras\n") + f"\n{_USE}"
    default = value_text(policy_name(plan.compute_dtype))
    entries = [entry for entry in plan.modules if entry.module != ROOT] if version.within(MAP_SINCE, "") else []
    if entries:
        # Up to 3.11 a key anywhere in a path matches; the anchors are right for whole matches too.
        text += f'{_ROOT}ROOT = ""\n{_GLOBS}{_table(entries)}{_MAP_SEARCHED.format(default=default)}'
    else:
        setter = (
            "keras.config.set_dtype_policy"
            if version.within(CONFIG_SINCE, "")
            else "keras.mixed_precision.set_dtype_policy"
            if new
            else "keras.mixed_precision.set_global_policy"
        )
        text += f"{setter}({default})\n"
    if plan.compute_dtype != "float32" and plan.policy.output_dtype == "float32":
        text += (
            f"\n\n{_OUTPUT}def in_float32(outputs):\n"
            '    return keras.layers.Activation("linear", dtype="float32")(outputs)\n'
        )
    if plan.loss_scale is not None:
        text += _optimizer(plan.loss_scale, new)
    return text


def _table(entries: list[ModulePolicy]) -> str:
    rows = ""
    for index, entry in enumerate(entries):
        regex = _without_later(glob_regex(entry.module, "/"), entries, index)
        name = policy_name(entry.policy.compute_dtype)
        rows += f"    {value_text(entry.module)}: ({regex_text(regex)}, {value_text(name)}),\n"
    return f"{MODULES} = {{\n{rows}}}\n"


def _without_later(regex: str, entries: list[ModulePolicy], index: int) -> str:
    """Returns the expression without what later entries cover: a map refuses a path with two matches."""
    glob = entries[index].module
    later = [e.module for e in entries[index + 1 :] if not (literal_glob(glob) and literal_glob(e.module))]
    return "".join(f"(?!(?:{glob_regex(other, '/')})$)" for other in later) + regex


def _optimizer(scale: LossScale, new: bool) -> str:
    arguments = {"initial_scale": scale.initial_scale, "dynamic_growth_steps": scale.growth_interval}
    if scale.mode == "static":
        arguments["dynamic_growth_steps"] = NEVER
    package = "optimizers" if new else "mixed_precision"
    lines = "".join(f"        {name}={value_text(value)},\n" for name, value in arguments.items())
    return (
        f"\n\n{_SCALED}def scaled(optimizer):\n"
        f"    return keras.{package}.LossScaleOptimizer(\n        optimizer,\n{lines}    )\n"
    )

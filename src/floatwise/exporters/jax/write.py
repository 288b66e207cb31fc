# SPDX-License-Identifier: Apache-2.0
"""A plan as source for JAX and Flax."""

from __future__ import annotations

from floatwise.exporters.glob_source import glob_regex, regex_text
from floatwise.exporters.jax.policy_string import policy_string
from floatwise.exporters.python_text import call_text, value_text
from floatwise.exporters.system import Request
from floatwise.language import Text
from floatwise.plan.model import LossScale, Plan

__all__ = ["MODULES", "write"]

MODULES = "MODULES"
"""The constant that holds the plan's globs, each with its regular expression and dtype."""

# DynamicScale has no static mode: growth is put off beyond any training. It counts in int32.
_NEVER = 2**31 - 1

_POLICY = Text(
    "# For jmp.get_policy(POLICY), and for the reader: weights, arithmetic, outputs.\n",
    "# 供 jmp.get_policy(POLICY) 使用，也供阅读：权重、计算、输出的格式。\n",
)
_GLOBS = Text(
    "# Modules that compute in another format: the plan's glob, the same as a regular expression, and the dtype.\n",
    "# 以其他格式计算的模块：计划中的通配符、对应的正则表达式，以及 dtype。\n",
)
_DTYPES = Text(
    '# nn.Dense(256, **dtypes("encoder.dense")), in flax.linen and nnx: without dtype= modules promote to float32.\n',
    '# nn.Dense(256, **dtypes("encoder.dense"))，适用于 flax.linen 和 flax.nnx：不给 dtype= 时模块会提升为 float32。\n',
)
_OUTPUT = Text("# The loss takes to_output(model(...)).\n", "# 损失函数使用 to_output(model(...))。\n")
_SCALE = Text(
    "# dynamic_scale, is_finite, loss, grads = dynamic_scale.value_and_grad(loss_fn)(params): grads are unscaled.\n"
    "# Keep params and optimizer state where is_finite is False:\n"
    "# jax.tree.map(functools.partial(jnp.where, is_finite), new, old)\n",
    "# dynamic_scale, is_finite, loss, grads = dynamic_scale.value_and_grad(loss_fn)(params)：grads 已除去缩放。\n"
    "# is_finite 为 False 时保留原参数和优化器状态：\n"
    "# jax.tree.map(functools.partial(jnp.where, is_finite), new, old)\n",
)


def write(plan: Plan, request: Request) -> str:
    """Returns the source for a plan of 16 bits or float32."""
    imports = ["import jax", "import jax.numpy as jnp"]
    if plan.loss_scale is not None:
        imports.append("from flax.training.dynamic_scale import DynamicScale")
    precision = "float32" if plan.float32_matmul == "ieee" else "tensorfloat32"
    policy = policy_string("float32", plan.compute_dtype, plan.policy.output_dtype)
    text = ("import re\n\n" if plan.modules else "") + "\n".join(imports) + "\n\n"
    text += f'jax.config.update("jax_default_matmul_precision", {value_text(precision)})\n'
    text += f"{_POLICY}POLICY = {value_text(policy)}\n"
    text += _modules(plan)
    text += (
        f"\n\n{_OUTPUT}def to_output(tree):\n"
        f"    dtype = jnp.{plan.policy.output_dtype}\n"
        "    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)\n"
    )
    return text + (_dynamic_scale(plan.loss_scale) if plan.loss_scale else "")


def _modules(plan: Plan) -> str:
    default = f"jnp.{plan.compute_dtype}"
    if not plan.modules:
        return f'\n\n{_DTYPES}def dtypes(path):\n    return {{"dtype": {default}, "param_dtype": jnp.float32}}\n'
    rows = "".join(
        f"    {value_text(entry.module)}: ({regex_text(glob_regex(entry.module))}, jnp.{entry.policy.compute_dtype}),\n"
        for entry in plan.modules
    )
    return (
        f"{_GLOBS}{MODULES} = {{\n{rows}}}\n"
        f"\n\n{_DTYPES}def dtypes(path):\n"
        "    found = [dtype for regex, dtype in MODULES.values() if re.fullmatch(regex, path, re.DOTALL)]\n"
        f'    return {{"dtype": [{default}, *found][-1], "param_dtype": jnp.float32}}\n'
    )


def _dynamic_scale(scale: LossScale) -> str:
    made = call_text(
        "DynamicScale",
        {
            "scale": scale.initial_scale,
            "growth_factor": scale.growth_factor,
            "backoff_factor": scale.backoff_factor,
            "growth_interval": _NEVER if scale.mode == "static" else scale.growth_interval,
            "minimum_scale": min(scale.floor, scale.initial_scale),
        },
    )
    return f"\n\n{_SCALE}DYNAMIC_SCALE = {made}\n"

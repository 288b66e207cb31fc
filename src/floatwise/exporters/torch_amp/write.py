# SPDX-License-Identifier: Apache-2.0
"""A plan as one module of plain PyTorch that a training script imports."""

from __future__ import annotations

from floatwise.exporters.python_text import value_text
from floatwise.exporters.settings import Dotted
from floatwise.exporters.system import Request
from floatwise.exporters.torch_amp import pieces
from floatwise.exporters.torch_source import scale_where_float16
from floatwise.language import Text
from floatwise.plan.dtypes import SIXTEEN_BIT_FORMATS
from floatwise.plan.model import LossScale, ModulePolicy, Plan

__all__ = ["SCALE_KEYS", "write"]

SCALE_KEYS = (
    "mode",
    "initial_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "hysteresis",
    "floor",
    "ceiling",
)
"""Keys of the module's LOSS_SCALE, by the plan's names."""

_FORMATS = Text(
    "Weights are float32, products {compute}.",
    "权重为 float32，矩阵乘法为 {compute}。",
)
_GLOBS = Text(
    "# Glob of module paths, what they compute in, what they hand on, why; later entries win. `*`, `?` and `[12]`\n"
    "# stay within one name, `**` stands for any number of names, `(root)` for the model itself.\n",
    "# 模块路径的通配式、计算格式、输出格式、原因；后面的条目优先。`*`、`?`、`[12]` 不跨名称匹配，\n"
    "# `**` 匹配任意多个名称，`(root)` 表示模型本身。\n",
)
_ISLANDS = Text(", the formats of MODULES", "、MODULES 中各模块的格式")


def write(plan: Plan, request: Request) -> str:
    """Returns the source of the module."""
    device = value_text(request.options["device"])
    low = plan.compute_dtype in SIXTEEN_BIT_FORMATS
    parts = [
        pieces.DOC.format(formats=_FORMATS.format(compute=plan.compute_dtype)),
        _imports(plan),
        _constants(plan),
        (pieces.AUTOCAST if low else pieces.AUTOCAST_OFF).format(device=device),
        _prepare(plan, device),
    ]
    if plan.modules:
        parts.append(pieces.MODULES.format(device=device))
    scale = _needed_scale(plan)
    parts.append(_scaler(scale, device) if scale else pieces.NO_SCALER.format(device=device))
    return "\n".join(parts)


def _needed_scale(plan: Plan) -> LossScale | None:
    policies = [plan.policy, *(entry.policy for entry in plan.modules)]
    return scale_where_float16(plan, *(d for p in policies for d in (p.compute_dtype, p.output_dtype)))


def _imports(plan: Plan) -> str:
    mine = "import functools\nfrom fnmatch import fnmatchcase\n\n" if plan.modules else ""
    return f"{mine}import torch\nfrom torch.utils._pytree import tree_map\n"


def _constants(plan: Plan) -> str:
    lines = [
        "PARAM_DTYPE = torch.float32",
        f"COMPUTE_DTYPE = torch.{plan.compute_dtype}",
        f"OUTPUT_DTYPE = torch.{plan.policy.output_dtype}",
        f"FLOAT32_MATMUL = {value_text(plan.float32_matmul)}",
        _scale(_needed_scale(plan)),
    ]
    text = "\n".join(lines) + "\n"
    if plan.modules:
        entries = "".join(f"    {_entry(entry)}\n" for entry in plan.modules)
        text += f"\n{_GLOBS}MODULES = (\n{entries})\n"
    return text


def _entry(entry: ModulePolicy) -> str:
    formats = entry.policy
    compute, output = Dotted(f"torch.{formats.compute_dtype}"), Dotted(f"torch.{formats.output_dtype}")
    return f"{value_text((entry.module, compute, output, ' '.join(entry.reason.split())))},"


def _scale(scale: LossScale | None) -> str:
    if scale is None:
        return "LOSS_SCALE = None"
    rows = "".join(f"    {value_text(key)}: {value_text(getattr(scale, key))},\n" for key in SCALE_KEYS)
    return f"LOSS_SCALE = {{\n{rows}}}"


def _prepare(plan: Plan, device: str) -> str:
    islands, argument, calls = "", "", ""
    if plan.modules:
        islands = str(_ISLANDS)
        argument = f", device={device}"
        calls = "    keep_float32(model, device)\n    if not isinstance(model.forward, _InFormat):\n    "
    calls += "    model.register_forward_hook(_hand_on)\n"
    return pieces.PREPARE.format(argument=argument, islands=islands, calls=calls)


def _scaler(scale: LossScale, device: str) -> str:
    more = pieces.HYSTERESIS if scale.hysteresis > 1 and scale.mode == "dynamic" else {}
    low, high = ("initial_scale", "initial_scale") if scale.mode == "static" else ("floor", "ceiling")
    limits = f'self._scale.clamp_(LOSS_SCALE["{low}"], LOSS_SCALE["{high}"])'
    filled = {name: more.get(name, "") for name in ("attributes", "before", "after")}
    return pieces.SCALER.format(device=device, limits=limits, **filled)

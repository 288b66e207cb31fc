# SPDX-License-Identifier: Apache-2.0
"""A float8 plan as a recipe of TransformerEngine and the context to run forward in."""

from __future__ import annotations

from floatwise.exporters.python_text import call_text
from floatwise.exporters.settings import Dotted
from floatwise.exporters.system import Request
from floatwise.exporters.transformer_engine.knobs import BLOCK_SINCE, CURRENT_SINCE, QUANTIZATION_AUTOCAST_SINCE
from floatwise.language import Text
from floatwise.plan.model import Plan

__all__ = ["write"]

_USE = Text(
    "# Build the model of TransformerEngine's modules (te.Linear, te.LayerNormLinear, te.TransformerLayer), weights\n"
    "# in float32, and run forward under precision(), backward outside it. Where float8 must not go keep torch.nn.\n",
    "# 用 TransformerEngine 的模块（te.Linear、te.LayerNormLinear、te.TransformerLayer）搭建模型，权重为 float32；\n"
    "# 前向放在 precision() 内，反向放在外面。不应使用 float8 的地方保留 torch.nn 的模块。\n",
)

_BODY = """

@contextlib.contextmanager
def precision():
    with torch.autocast("cuda", dtype=torch.bfloat16), {context}:
        yield
"""


def write(plan: Plan, request: Request) -> str:
    """Returns the source for a float8 plan."""
    name, fp8_format = _recipe(plan, request)
    made = call_text(name, {"fp8_format": Dotted(f"Format.{fp8_format}")})
    new = request.version.within(QUANTIZATION_AUTOCAST_SINCE, "")
    context = "te.autocast(enabled=True, recipe=RECIPE)" if new else "te.fp8_autocast(enabled=True, fp8_recipe=RECIPE)"
    text = (
        "import contextlib\n\nimport torch\nimport transformer_engine.pytorch as te\n"
        f"from transformer_engine.common.recipe import {', '.join(sorted((name, 'Format')))}\n\n"
    )
    if plan.float32_matmul == "tf32":
        text += 'torch.set_float32_matmul_precision("high")\n'
    return f"{text}{_USE}RECIPE = {made}\n{_BODY.format(context=context)}"


def _recipe(plan: Plan, request: Request) -> tuple[str, str]:
    """Returns the recipe's class and its format: e5m2 gradients with one factor a tensor, e4m3 with finer ones."""
    if plan.scaling == "mx":
        return "MXFP8BlockScaling", "E4M3"
    if plan.scaling != "tensorwise" and request.version.within(BLOCK_SINCE, ""):
        return "Float8BlockScaling", "E4M3"
    return ("Float8CurrentScaling" if request.version.within(CURRENT_SINCE, "") else "DelayedScaling"), "HYBRID"

# SPDX-License-Identifier: Apache-2.0
"""A float8 plan as source that converts a model with torchao."""

from __future__ import annotations

from floatwise.exporters.glob_source import glob_regex, regex_text
from floatwise.exporters.python_text import value_text
from floatwise.exporters.system import Request
from floatwise.language import Text
from floatwise.plan.model import Plan

__all__ = ["NOT_FLOAT8", "write"]

NOT_FLOAT8 = "NOT_FLOAT8"
"""The constant that holds the plan's globs, each with its regular expression."""

_USE = Text(
    "# model = to_float8(model) before the optimizer is made and before torch.compile, which makes float8 fast;\n"
    "# run forward and the loss under autocast().\n",
    "# 在创建优化器和 torch.compile 之前调用 model = to_float8(model)（float8 需要编译才快）；\n"
    "# 前向和损失放在 autocast() 内。\n",
)
_GLOBS = Text(
    "# Modules that stay out of float8: the plan's glob, and the same as a regular expression.\n",
    "# 不使用 float8 的模块：计划中的通配符及其正则表达式。\n",
)
_FITS = Text(
    "    # float8 units multiply blocks of 16; subclasses of Linear would lose their own forward.\n",
    "    # float8 单元按 16 的块相乘；Linear 的子类转换后会丢失自己的 forward。\n",
)
_FITS_MX = Text(
    "    # MX blocks are 32 elements. torchao leaves a bias out of the product and of training: layers with one stay\n"
    "    # as they are, and so do subclasses of Linear, which have a forward of their own.\n",
    "    # MX 每块 32 个元素。torchao 的 MX 乘法会丢掉 bias，也不训练它，因此带 bias 的层保持不变；\n"
    "    # Linear 的子类有自己的 forward，也保持不变。\n",
)

_FILTER = """
def is_float8(module, name):
{why}    fits = {is_linear} and all(size % {block} == 0 for size in module.weight.shape)
    return fits and not any(re.fullmatch(regex, name, re.DOTALL) for regex in NOT_FLOAT8.values())


def to_float8(model):
    if not any(is_float8(module, name) for name, module in model.named_modules()):
        warnings.warn("no linear layer is eligible for float8: {reasons}, or all are left out")
{convert}

def autocast(device_type="cuda"):
    return torch.autocast(device_type, dtype=torch.bfloat16)
"""

_CONVERT = "    return convert_to_float8_training(model, config=CONFIG, module_filter_fn=is_float8)\n"
_CONVERT_MX = "    quantize_(model, CONFIG, filter_fn=is_float8)\n    return model\n"

_IMPORTS = "from torchao.float8 import Float8LinearConfig, convert_to_float8_training\n"
_IMPORTS_MX = (
    "from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe\n"
    "from torchao.quantization import quantize_\n"
)


def write(plan: Plan, request: Request) -> str:
    """Returns the source for a float8 plan."""
    mx = plan.scaling == "mx"
    made = (
        "MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_RCEIL)"
        if mx
        else f"Float8LinearConfig.from_recipe_name({value_text(plan.scaling)})"
    )
    text = "import re\nimport warnings\n\nimport torch\nfrom torch import nn\n" + (_IMPORTS_MX if mx else _IMPORTS)
    text += f"\n{_USE}CONFIG = {made}\n{_GLOBS}{_globs(plan)}"
    if plan.float32_matmul == "tf32":
        text += 'torch.set_float32_matmul_precision("high")\n'
    body = _FILTER.format(
        why=_FITS_MX if mx else _FITS,
        is_linear="type(module) is nn.Linear and module.bias is None" if mx else "type(module) is nn.Linear",
        block=32 if mx else 16,
        reasons="they have a bias or odd sizes" if mx else "sizes are no multiples of 16",
        convert=_CONVERT_MX if mx else _CONVERT,
    )
    return f"{text}\n{body}"


def _globs(plan: Plan) -> str:
    if not plan.modules:
        return f"{NOT_FLOAT8} = {{}}\n"
    rows = "".join(
        f"    {value_text(entry.module)}: {regex_text(glob_regex(entry.module))},\n" for entry in plan.modules
    )
    return f"{NOT_FLOAT8} = {{\n{rows}}}\n"

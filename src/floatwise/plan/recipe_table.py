# SPDX-License-Identifier: Apache-2.0
"""The recipes: one row per name, in the order in which people should consider them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from floatwise.language import Text

__all__ = ["RECIPES", "RECIPE_TABLE", "Master", "RecipeRow", "Scaling"]

Master = Literal["none", "float32", "split", "kahan", "stochastic"]
Scaling = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp", "mx"]


@dataclass(frozen=True, kw_only=True)
class RecipeRow:
    """What a recipe's name stands for.

    Attributes:
      description: What it does, in a sentence.
      param_dtype: Format of the stored weights.
      compute_dtype: Operand format of matrix products.
      master: How 16-bit weights keep float32 accuracy.
      float32_matmul: How products of float32 operands are computed.
      scaling: How many scale factors a float8 operand has.
      source: Where the recipe comes from.
    """

    description: Text
    param_dtype: str = "float32"
    compute_dtype: str
    master: Master = "none"
    float32_matmul: Literal["ieee", "tf32"] = "ieee"
    scaling: Scaling | None = None
    source: str


RECIPE_TABLE: Mapping[str, RecipeRow] = MappingProxyType(
    {
        "fp32": RecipeRow(
            description=Text(
                "Everything in float32: the baseline that others are judged against.",
                "全部使用 float32：衡量其他方案的基线。",
            ),
            compute_dtype="float32",
            source="IEEE 754-2019 binary32",
        ),
        "tf32": RecipeRow(
            description=Text(
                "float32 everywhere, matrix products on the TF32 units: 10 mantissa bits, the same memory.",
                "全程 float32，矩阵乘法走 TF32 单元：尾数 10 位，显存占用不变。",
            ),
            compute_dtype="float32",
            float32_matmul="tf32",
            source="NVIDIA A100 architecture white paper, 2020",
        ),
        "bf16-mixed": RecipeRow(
            description=Text(
                "float32 weights, bfloat16 matrix products: float32's range, so no loss scale is needed.",
                "权重为 float32，矩阵乘法用 bfloat16：数值范围与 float32 相同，无需损失缩放。",
            ),
            compute_dtype="bfloat16",
            source="Kalamkar et al. 2019, arXiv 1905.12322",
        ),
        "fp16-mixed": RecipeRow(
            description=Text(
                "float32 weights, float16 matrix products, and a loss scale that saves small gradients.",
                "权重为 float32，矩阵乘法用 float16，并用损失缩放防止小梯度下溢为零。",
            ),
            compute_dtype="float16",
            source="Micikevicius et al. 2018, arXiv 1710.03740",
        ),
        "bf16-master": RecipeRow(
            description=Text(
                "bfloat16 weights and matrix products; updates go to exact float32 weights of 4 bytes.",
                "权重和矩阵乘法均为 bfloat16；优化器更新的是精确的 float32 主权重，每个权重共占 4 字节。",
            ),
            param_dtype="bfloat16",
            compute_dtype="bfloat16",
            master="split",
            source="Zamirai et al. 2020, arXiv 2010.06192, which shows what plain bfloat16 weights lose",
        ),
        "fp16-master": RecipeRow(
            description=Text(
                "float16 weights and matrix products, a loss scale, and float32 weights to update.",
                "权重和矩阵乘法均为 float16，配合损失缩放，并保留一份 float32 主权重供优化器更新。",
            ),
            param_dtype="float16",
            compute_dtype="float16",
            master="float32",
            source="Micikevicius et al. 2018, arXiv 1710.03740, section 3.1; apex's level O2",
        ),
        "fp8-tensorwise": RecipeRow(
            description=Text(
                "Linear layers multiply in float8, one scale factor per tensor; all else is bfloat16.",
                "线性层以 float8 做乘法，每个张量一个缩放因子；其余部分用 bfloat16 计算。",
            ),
            compute_dtype="float8_e4m3fn",
            scaling="tensorwise",
            source="torchao.float8, recipe `tensorwise`; Micikevicius et al. 2022, arXiv 2209.05433",
        ),
        "fp8-rowwise": RecipeRow(
            description=Text(
                "As fp8-tensorwise, with one scale factor per row: an outlier coarsens its own row only.",
                "与 fp8-tensorwise 相同，但每行一个缩放因子，个别离群值只影响所在的行。",
            ),
            compute_dtype="float8_e4m3fn",
            scaling="rowwise",
            source="torchao.float8, recipe `rowwise`",
        ),
        "fp8-rowwise-gw-hp": RecipeRow(
            description=Text(
                "As fp8-rowwise, but gradients of weights are products in bfloat16: slower, and more accurate.",
                "与 fp8-rowwise 相同，但权重梯度仍用 bfloat16 相乘：更准确，但更慢。",
            ),
            compute_dtype="float8_e4m3fn",
            scaling="rowwise_with_gw_hp",
            source="torchao.float8, recipe `rowwise_with_gw_hp`",
        ),
        "mxfp8": RecipeRow(
            description=Text(
                "As fp8-tensorwise, with one power of two for every 32 elements, which needs units for MX formats.",
                "与 fp8-tensorwise 相同，但每 32 个元素共用一个 2 的幂作缩放因子，需要支持 MX 格式的硬件单元。",
            ),
            compute_dtype="float8_e4m3fn",
            scaling="mx",
            source="OCP Microscaling Formats (MX) Specification 1.0, 2023; torchao, prototype/mx_formats",
        ),
    }
)

RECIPES: Mapping[str, Text] = MappingProxyType({name: row.description for name, row in RECIPE_TABLE.items()})
"""What each recipe does, by name."""

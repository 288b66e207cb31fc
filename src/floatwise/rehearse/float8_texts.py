# SPDX-License-Identifier: Apache-2.0
"""What a float8 rehearsal has to say, in two languages. No framework is imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from floatwise.language import Text

__all__ = ["FLOAT8_ADVICE", "FLOAT8_REMARKS"]

FLOAT8_REMARKS: Mapping[str, Text] = MappingProxyType(
    {
        "float8_layers": Text(
            "{converted} of {total} linear layers multiply in float8; the others, such as {module}, in bfloat16 or as "
            "the plan says.",
            "{total} 个线性层中有 {converted} 个以 float8 做乘法；其余（如 {module}）用 bfloat16 或计划指定的格式。",
        ),
        "float8_uneven_rows": Text(
            "{module} got {rows} rows, and the float8 product for its weight's gradient takes multiples of {multiple}: "
            "change the batch size or the sequence length, or give torchao pad_inner_dim=True.",
            "{module} 的输入有 {rows} 行，而计算其权重梯度的 float8 矩阵乘要求行数为 {multiple} 的倍数："
            "请调整批大小或序列长度，或在 torchao 中设置 pad_inner_dim=True。",
        ),
        "float8_vanishes": Text(
            "In {module}, {share} of the values of `{role}` become zero in float8: the scale suits the largest one, "
            "{amax}.",
            "在 {module} 中，`{role}` 有 {share} 的值在 float8 下变为零：缩放因子迁就了最大值 {amax}。",
        ),
    }
)
"""Remarks by code."""

FLOAT8_ADVICE: Mapping[str, Text] = MappingProxyType(
    {
        "scale_by_rows": Text(
            "In {module}, values of up to {amax} in `{role}` decide the scale of the whole tensor, and {share} become "
            "zero: use one scale per row (recipe fp8-rowwise), or bound those values before the layer.",
            "在 {module} 中，`{role}` 中高达 {amax} 的值决定了整个张量的缩放因子，使 {share} 的值变为零："
            "请改为每行一个缩放因子（方案 fp8-rowwise），或在该层之前限制这些值。",
        ),
        "bound_outliers": Text(
            "In {module}, values of up to {amax} in `{role}` decide the scales, and {share} become zero: bound those "
            "values before the layer, or divide that channel by a power of two and multiply its weights by it.",
            "在 {module} 中，`{role}` 中高达 {amax} 的值决定了缩放因子，使 {share} 的值变为零："
            "请在该层之前限制这些值，或将该通道除以 2 的幂，并将对应的权重乘以同一个数。",
        ),
    }
)
"""Advice by code, from the data of the remark `float8_vanishes`."""

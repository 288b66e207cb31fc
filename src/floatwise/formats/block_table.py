# SPDX-License-Identifier: Apache-2.0
"""The block formats, one row each, and finding a row by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from floatwise.errors import UnknownNameError
from floatwise.formats.info import BlockFormat, Format
from floatwise.formats.table import FORMATS, get_format
from floatwise.language import Text

__all__ = ["BLOCK_FORMATS", "find_format", "get_block_format"]

_MX = "OCP Microscaling Formats (MX) Specification 1.0, 2023, section 5.2"
_NVFP4 = "NVIDIA 2025, Pretraining Large Language Models with NVFP4, arXiv:2509.25149"
_MX_BLOCK_SIZE = 32  # OCP MX 1.0, section 5.2: the same in every concrete format
_NVFP4_BLOCK_SIZE = 16  # arXiv:2509.25149
_E8M0 = get_format("float8_e8m0fnu")

# OCP MX 1.0, section 5.3.4: two's complement with 6 fraction bits. Its symmetric values, k/64 for |k| <= 127,
# are those of a float with a one-bit exponent. Codes differ, so this is no row of the table of formats.
_INT8 = Format(
    name="int8",
    bits=8,
    exponent_bits=1,
    mantissa_bits=6,
    bias=1,
    infinities=False,
    nans="none",
    overflow="saturate",
    source="OCP Microscaling Formats (MX) Specification 1.0, 2023, section 5.3.4",
    use=Text("Elements of mxint8 blocks.", "mxint8 的块元素。"),
    pitfalls=Text("Useless without a block scale.", "离开块缩放因子便无法使用。"),
)

_ROWS = (
    BlockFormat(
        name="mxfp8_e4m3",
        element=get_format("float8_e4m3fn"),
        block_size=_MX_BLOCK_SIZE,
        scale=_E8M0,
        source=_MX,
        aliases=("mxfp8", "mxfp8_e4m3fn"),
        use=Text(
            "float8 training on Blackwell and MI350 without a history of amax: weights, activations and gradients.",
            "在 Blackwell 与 MI350 上进行 float8 训练，无需维护 amax 历史：权重、激活与梯度均可使用。",
        ),
        pitfalls=Text(
            "The specification rounds the block's scale down, so its largest values may be cut by up to an "
            "eighth; training recipes round it up instead (arXiv:2506.08027). Blocks run along one axis, so "
            "a transposed operand must be quantised again from the original.",
            "规范将块缩放因子向下取整，块内最大的值可能被截去最多八分之一；训练方案改为向上取整"
            "（arXiv:2506.08027）。块沿单一轴划分，转置后的操作数须由原始值重新量化。",
        ),
    ),
    BlockFormat(
        name="mxfp8_e5m2",
        element=get_format("float8_e5m2"),
        block_size=_MX_BLOCK_SIZE,
        scale=_E8M0,
        source=_MX,
        use=Text(
            "Gradients whose values spread widely even among 32 neighbours.",
            "用于相邻 32 个值之间仍相差悬殊的梯度。",
        ),
        pitfalls=Text(
            "Only 3 significant bits, for a range that the block's scale mostly provides already: mxfp8_e4m3 "
            "is usually the better choice, for gradients too.",
            "有效位只有 3 位，换来的范围大多已由块缩放因子提供：即使是梯度，通常也更适合用 mxfp8_e4m3。",
        ),
    ),
    BlockFormat(
        name="mxfp6_e2m3",
        element=get_format("float6_e2m3fn"),
        block_size=_MX_BLOCK_SIZE,
        scale=_E8M0,
        source=_MX,
        aliases=("mxfp6", "mxfp6_e2m3fn"),
        use=Text(
            "Weights and activations at the precision of mxfp8_e4m3 in three quarters of the space.",
            "以四分之三的空间、与 mxfp8_e4m3 相同的精度存放权重与激活。",
        ),
        pitfalls=Text(
            "A block spans less than six powers of two: beside one outlier, values below about a hundredth "
            "of it become zero.",
            "块内跨度不到六个 2 的幂：只要有一个离群值，小于其约百分之一的值都会变为零。",
        ),
    ),
    BlockFormat(
        name="mxfp6_e3m2",
        element=get_format("float6_e3m2fn"),
        block_size=_MX_BLOCK_SIZE,
        scale=_E8M0,
        source=_MX,
        aliases=("mxfp6_e3m2fn",),
        use=Text(
            "Gradients in 6 bits, and blocks with outliers.",
            "以 6 位存放梯度，或用于含离群值的块。",
        ),
        pitfalls=Text(
            "Only 3 significant bits; the largest values of a block may be cut by up to an eighth.",
            "有效位只有 3 位；块内最大的值可能被截去最多八分之一。",
        ),
    ),
    BlockFormat(
        name="mxfp4_e2m1",
        element=get_format("float4_e2m1fn"),
        block_size=_MX_BLOCK_SIZE,
        scale=_E8M0,
        source=_MX,
        aliases=("mxfp4", "mxfp4_e2m1fn"),
        use=Text(
            "Weights for inference, and for fine-tuning small adapters on top of frozen weights.",
            "用于推理权重，或在冻结权重之上微调小型适配器。",
        ),
        pitfalls=Text(
            "The largest values of a block may be cut by up to a quarter, and values below about a sixteenth "
            "to a thirty-second of them become zero. For training, nvfp4 loses less.",
            "块内最大的值可能被截去最多四分之一，小于其约十六分之一到三十二分之一的值会变为零。用于训练时 "
            "nvfp4 损失更小。",
        ),
    ),
    BlockFormat(
        name="mxint8",
        element=_INT8,
        block_size=_MX_BLOCK_SIZE,
        scale=_E8M0,
        twos_complement=True,
        source=_MX,
        use=Text(
            "Weights and activations for inference, converted without calibration (arXiv:2310.10537).",
            "用于推理的权重与激活，直接转换而无需校准（arXiv:2310.10537）。",
        ),
        pitfalls=Text(
            "Evenly spaced values: beside one outlier, values below about 1/128 to 1/256 of it become zero. "
            "Not for gradients.",
            "取值等间距：只要有一个离群值，小于其约 1/128 到 1/256 的值都会变为零。不适合梯度。",
        ),
    ),
    BlockFormat(
        name="nvfp4",
        element=get_format("float4_e2m1fn"),
        block_size=_NVFP4_BLOCK_SIZE,
        scale=get_format("float8_e4m3fn"),
        tensor_scale=True,
        source=_NVFP4,
        aliases=("nvfp4_e2m1",),
        use=Text(
            "4-bit matrix products on Blackwell, with gradients rounded stochastically, Hadamard transforms "
            "and a few layers kept wider.",
            "在 Blackwell 上进行 4 位矩阵乘：梯度使用随机舍入，配合 Hadamard 变换，并让少数层保持更宽的格式。",
        ),
        pitfalls=Text(
            "The whole tensor's amax is needed before its first block. Blocks whose amax is below about "
            "2^-19 of the tensor's get a scale of zero and vanish.",
            "量化第一个块之前就需要整个张量的 amax。amax 低于整个张量约 2^-19 的块，其缩放因子为零，整块消失。",
        ),
    ),
)

BLOCK_FORMATS: Mapping[str, BlockFormat] = MappingProxyType({row.name: row for row in _ROWS})
"""Every block format by its canonical name."""

_BY_NAME = {name: row for row in _ROWS for name in (row.name, *row.aliases)}


def get_block_format(name: BlockFormat | str) -> BlockFormat:
    """Returns the block format of that name or alias, compared without case.

    Raises:
      UnknownNameError: No row has the name.
    """
    if isinstance(name, BlockFormat):
        return name
    row = _BY_NAME.get(name.casefold())
    if row is None:
        raise UnknownNameError("block format", name, BLOCK_FORMATS)
    return row


def find_format(name: str) -> Format | BlockFormat:
    """Returns the format or block format of that name or alias.

    Raises:
      UnknownNameError: Neither table has the name.
    """
    row = _BY_NAME.get(name.casefold())
    if row is not None:
        return row
    try:
        return get_format(name)
    except UnknownNameError:
        raise UnknownNameError("number format", name, (*FORMATS, *BLOCK_FORMATS)) from None

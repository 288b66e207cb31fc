# SPDX-License-Identifier: Apache-2.0
"""The floating-point formats, one row each, and finding a row by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from floatwise.errors import UnknownNameError
from floatwise.formats.info import Format
from floatwise.language import Text

__all__ = ["FORMATS", "get_format"]

_IEEE_754 = "IEEE 754-2019, table 3.5"
_OFP8 = "OCP 8-bit Floating Point Specification (OFP8) 1.0, 2023; Micikevicius et al. 2022, arXiv:2209.05433"
_FNUZ = "Noune et al. 2022, 8-bit Numerical Formats for Deep Neural Networks, arXiv:2206.02915"
_MX = "OCP Microscaling Formats (MX) Specification 1.0, 2023, section 5"

_ROWS = (
    Format(
        name="float64",
        bits=64,
        exponent_bits=11,
        mantissa_bits=52,
        bias=1023,
        infinities=True,
        nans="ieee",
        overflow="infinity",
        source=f"{_IEEE_754}, binary64",
        aliases=("fp64", "f64", "double", "binary64"),
        use=Text(
            "The reference other formats are checked against, and delicate arithmetic outside the network.",
            "用作校验其他格式的基准，以及网络之外对误差敏感的运算。",
        ),
        pitfalls=Text(
            "Twice the memory of float32 and a small fraction of its speed on most GPUs. One stray NumPy "
            "array promotes a whole expression to it, and autocast leaves it alone.",
            "内存是 float32 的两倍，在多数 GPU 上速度只有其零头。混入一个 NumPy 数组就会把整个表达式提升为 "
            "float64，而 autocast 不会处理它。",
        ),
    ),
    Format(
        name="float32",
        bits=32,
        exponent_bits=8,
        mantissa_bits=23,
        bias=127,
        infinities=True,
        nans="ieee",
        overflow="infinity",
        source=f"{_IEEE_754}, binary32",
        aliases=("fp32", "f32", "float", "single", "binary32"),
        use=Text(
            "Master weights, optimizer state, and everything that sums or exponentiates: losses, softmax, norms.",
            "主权重、优化器状态，以及所有求和或取指数的运算：损失、softmax、各类归一化。",
        ),
        pitfalls=Text(
            "float32 tensors need not mean float32 products: cuDNN convolutions use tfloat32 by default on "
            "NVIDIA GPUs since Ampere. Set the precision explicitly when comparing with a float32 baseline.",
            "张量是 float32 并不代表乘法也是：在 Ampere 及之后的 NVIDIA GPU 上，cuDNN 卷积默认使用 "
            "tfloat32。与 float32 基线对比时应显式设置精度。",
        ),
    ),
    Format(
        name="tfloat32",
        bits=19,
        exponent_bits=8,
        mantissa_bits=10,
        bias=127,
        infinities=True,
        nans="ieee",
        overflow="infinity",
        storage_bits=32,
        source="NVIDIA A100 Tensor Core GPU Architecture whitepaper, 2020",
        aliases=("tf32", "tensorfloat32"),
        use=Text(
            "Faster matrix products on NVIDIA GPUs since Ampere without changing a dtype: operands are read "
            "with 10 mantissa bits, sums stay in float32.",
            "在 Ampere 及之后的 NVIDIA GPU 上，无需改动任何 dtype 即可加速矩阵乘：操作数按 10 位尾数读取，累"
            "加仍为 float32。",
        ),
        pitfalls=Text(
            "Values still occupy 32-bit words, so it saves no memory. Integers above 2048 (positions, "
            "counts) are no longer exact in a product, and the hardware's own conversion may break ties "
            "differently.",
            "数值仍占 32 位，不省内存。乘法中大于 2048 的整数（位置、计数）不再精确；硬件自身的转换对恰好居"
            "中的值取舍也可能不同。",
        ),
    ),
    Format(
        name="float16",
        bits=16,
        exponent_bits=5,
        mantissa_bits=10,
        bias=15,
        infinities=True,
        nans="ieee",
        overflow="infinity",
        source=f"{_IEEE_754}, binary16",
        aliases=("fp16", "f16", "half", "binary16"),
        use=Text(
            "Forward and backward on GPUs whose matrix units lack bfloat16 (V100, T4), and wherever its 3 "
            "extra bits over bfloat16 matter; with float32 master weights and a dynamic loss scale.",
            "用于矩阵单元不支持 bfloat16 的 GPU（V100、T4）上的前向与反向，以及需要比 bfloat16 多 3 位精度的"
            "场合；须配合 float32 主权重和动态损失缩放。",
        ),
        pitfalls=Text(
            "Activations past 65504 become infinity and gradients up to 2^-25 become zero, hence the loss "
            "scale. Adam's eps of 1e-8 is zero, a mask of -1e9 is -inf, and a running count stops at 2048.",
            "超过 65504 的激活变为无穷，不大于 2^-25 的梯度变为零，因此需要损失缩放。Adam 的 eps=1e-8 会变成"
            "零，-1e9 的掩码会变成 -inf，逐一累加的计数停在 2048。",
        ),
    ),
    Format(
        name="bfloat16",
        bits=16,
        exponent_bits=8,
        mantissa_bits=7,
        bias=127,
        infinities=True,
        nans="ieee",
        overflow="infinity",
        source="Intel, BFLOAT16 Hardware Numerics Definition, 2018; Kalamkar et al. 2019, arXiv:1905.12322",
        aliases=("bf16", "brain16"),
        use=Text(
            "The default for training where the hardware multiplies it: float32's range, so no loss scale; "
            "with float32 master weights.",
            "在硬件支持其乘法时是训练的首选：数值范围与 float32 相同，无需损失缩放；配合 float32 主权重。",
        ),
        pitfalls=Text(
            "Only 8 significant bits. A weight stored in bfloat16 loses every update smaller than about "
            "1/512 of it, a running sum of ones stops at 256, and an average with decay 0.9999 never moves: "
            "keep these in float32, or use stochastic rounding or Kahan sums.",
            "有效位只有 8 位。以 bfloat16 存储的权重会丢失小于自身约 1/512 的每次更新，逐一累加停在 256，衰"
            "减为 0.9999 的滑动平均纹丝不动：这些应保持 float32，或使用随机舍入、Kahan 求和。",
        ),
    ),
    Format(
        name="float8_e4m3fn",
        bits=8,
        exponent_bits=4,
        mantissa_bits=3,
        bias=7,
        infinities=False,
        nans="all_ones",
        overflow="nan",
        source=_OFP8,
        aliases=("e4m3", "e4m3fn", "fp8_e4m3", "fp8_e4m3fn", "float8_e4m3", "f8_e4m3fn"),
        use=Text(
            "Weights and activations of float8 matrix products, scaled per tensor, row or block so that amax "
            "meets 448; weights and sums stay in wider formats.",
            "用于 float8 矩阵乘的权重与激活，按张量、行或块缩放，使 amax 对齐 448；权重本体与累加保持更宽的格式。",
        ),
        pitfalls=Text(
            "There is no infinity, and libraries disagree past 464: ml_dtypes gives NaN, torch 2.13 "
            "saturates on CPU, even infinity. Count overflow before the cast. Unscaled values below 2^-10 "
            "vanish.",
            "没有无穷；超过 464 时各库行为不一：ml_dtypes 得到 NaN，torch 2.13 在 CPU 上饱和，连无穷也不例"
            "外。应在转换之前统计上溢。未缩放时小于 2^-10 的值会消失。",
        ),
    ),
    Format(
        name="float8_e5m2",
        bits=8,
        exponent_bits=5,
        mantissa_bits=2,
        bias=15,
        infinities=True,
        nans="ieee",
        overflow="infinity",
        source=_OFP8,
        aliases=("e5m2", "fp8_e5m2", "f8_e5m2"),
        use=Text(
            "Gradients of outputs in float8 training, whose spread needs more range than precision.",
            "用于 float8 训练中输出的梯度：其分布更需要范围而不是精度。",
        ),
        pitfalls=Text(
            "Only 3 significant bits: rounding moves a value by up to an eighth of it. Its range is "
            "float16's, so it needs scaling as float16 does.",
            "有效位只有 3 位：舍入误差可达数值的八分之一。范围与 float16 相当，同样需要缩放。",
        ),
    ),
    Format(
        name="float8_e4m3fnuz",
        bits=8,
        exponent_bits=4,
        mantissa_bits=3,
        bias=8,
        infinities=False,
        nans="negative_zero",
        overflow="nan",
        source=_FNUZ,
        aliases=("e4m3fnuz", "fp8_e4m3fnuz", "f8_e4m3fnuz"),
        use=Text(
            "The form of e4m3 that AMD MI300 (CDNA 3) multiplies: weights and activations.",
            "AMD MI300（CDNA 3）所支持的 e4m3 变体：用于权重与激活。",
        ),
        pitfalls=Text(
            "The bias is 8, not 7: the same code means half of what it means in float8_e4m3fn, and the "
            "maximum is 240, not 448. A scale made for one is wrong for the other. No minus zero, no "
            "infinity.",
            "指数偏置是 8 而不是 7：同一编码表示的值只有 float8_e4m3fn 的一半，最大值是 240 而不是 448。为一"
            "种格式计算的缩放因子不能用于另一种。没有负零，也没有无穷。",
        ),
    ),
    Format(
        name="float8_e5m2fnuz",
        bits=8,
        exponent_bits=5,
        mantissa_bits=2,
        bias=16,
        infinities=False,
        nans="negative_zero",
        overflow="nan",
        source=_FNUZ,
        aliases=("e5m2fnuz", "fp8_e5m2fnuz", "f8_e5m2fnuz"),
        use=Text(
            "The form of e5m2 that AMD MI300 (CDNA 3) multiplies: gradients.",
            "AMD MI300（CDNA 3）所支持的 e5m2 变体：用于梯度。",
        ),
        pitfalls=Text(
            "The bias is 16, not 15: the same code means half of what it means in float8_e5m2. Overflow "
            "gives NaN rather than infinity.",
            "指数偏置是 16 而不是 15：同一编码表示的值只有 float8_e5m2 的一半。上溢得到 NaN 而不是无穷。",
        ),
    ),
    Format(
        name="float8_e8m0fnu",
        bits=8,
        exponent_bits=8,
        mantissa_bits=0,
        bias=127,
        signed=False,
        infinities=False,
        nans="all_ones",
        overflow="nan",
        zero=False,
        source=f"{_MX}.4",
        aliases=("e8m0", "e8m0fnu", "fp8_e8m0", "f8_e8m0fnu"),
        use=Text(
            "The shared scale factors of the MX block formats: powers of two, whose product is exact.",
            "MX 分块格式的共享缩放因子：全是 2 的幂，相乘没有误差。",
        ),
        pitfalls=Text(
            "Not for values: no sign, no zero, nothing between powers of two. Zero and negative numbers "
            "become NaN in ml_dtypes, while torch 2.13 makes 2^-127 of zero and drops the sign.",
            "不能用来存放数值：没有符号，没有零，只有 2 的幂。零和负数在 ml_dtypes 中变为 NaN，而 torch 2.13 "
            "把零变成 2^-127 并丢弃符号。",
        ),
    ),
    Format(
        name="float6_e2m3fn",
        bits=6,
        exponent_bits=2,
        mantissa_bits=3,
        bias=1,
        infinities=False,
        nans="none",
        overflow="saturate",
        source=f"{_MX}.3",
        aliases=("e2m3", "e2m3fn", "fp6_e2m3", "f6_e2m3fn"),
        use=Text(
            "Elements of MX blocks where values lie close together: as precise as float8_e4m3fn in three "
            "quarters of the space.",
            "用于数值彼此接近的 MX 块元素：精度与 float8_e4m3fn 相同，空间只占四分之三。",
        ),
        pitfalls=Text(
            "Useless without a block scale: 0.125 to 7.5 is all it holds. Neither infinity nor NaN exists, "
            "so a broken value turns into an ordinary number.",
            "离开块缩放因子便无法使用：只能表示 0.125 到 7.5。没有无穷和 NaN，出错的值会变成普通数字。",
        ),
    ),
    Format(
        name="float6_e3m2fn",
        bits=6,
        exponent_bits=3,
        mantissa_bits=2,
        bias=3,
        infinities=False,
        nans="none",
        overflow="saturate",
        source=f"{_MX}.3",
        aliases=("e3m2", "e3m2fn", "fp6_e3m2", "f6_e3m2fn"),
        use=Text(
            "Elements of MX blocks whose values differ by more than float6_e2m3fn can span.",
            "用于数值跨度超出 float6_e2m3fn 的 MX 块元素。",
        ),
        pitfalls=Text(
            "Useless without a block scale: 0.0625 to 28 is all it holds. Neither infinity nor NaN exists, "
            "so a broken value turns into an ordinary number.",
            "离开块缩放因子便无法使用：只能表示 0.0625 到 28。没有无穷和 NaN，出错的值会变成普通数字。",
        ),
    ),
    Format(
        name="float4_e2m1fn",
        bits=4,
        exponent_bits=2,
        mantissa_bits=1,
        bias=1,
        infinities=False,
        nans="none",
        overflow="saturate",
        source=f"{_MX}.3",
        aliases=("e2m1", "e2m1fn", "fp4", "fp4_e2m1", "f4_e2m1fn"),
        use=Text(
            "Elements of mxfp4_e2m1 and nvfp4 blocks: eight magnitudes, 0 0.5 1 1.5 2 3 4 6.",
            "mxfp4_e2m1 与 nvfp4 的块元素：只有八种绝对值，0 0.5 1 1.5 2 3 4 6。",
        ),
        pitfalls=Text(
            "Useless without a block scale. Neighbours lie up to a factor of two apart, so gradients rounded "
            "to nearest are biased: round them stochastically.",
            "离开块缩放因子便无法使用。相邻值最多相差一倍，梯度按最近舍入会产生偏差：应使用随机舍入。",
        ),
    ),
)

FORMATS: Mapping[str, Format] = MappingProxyType({row.name: row for row in _ROWS})
"""Every floating-point format by its canonical name, widest first."""

_AMBIGUOUS_8_BITS = "8 bits can be split in several ways: name the split, such as 'e4m3' or 'e5m2'."

_BY_NAME = {name: row for row in _ROWS for name in (row.name, *row.aliases)}


def get_format(name: Format | str) -> Format:
    """Returns the format of that name or alias, compared without case; a format is returned as it is.

    Args:
      name: Canonical name, alias, or a framework's dtype such as `torch.bfloat16` as text.

    Raises:
      UnknownNameError: No row has the name.
    """
    if isinstance(name, Format):
        return name
    row = _BY_NAME.get(name.casefold().rpartition(".")[2])
    if row is None:
        raise UnknownNameError("number format", name, FORMATS, _AMBIGUOUS_8_BITS if "8" in name else None)
    return row

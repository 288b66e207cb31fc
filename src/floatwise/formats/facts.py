# SPDX-License-Identifier: Apache-2.0
"""Everything a format's page says: labels in both languages, values as text derived from the row."""

from __future__ import annotations

import math

from floatwise.formats.block_table import find_format
from floatwise.formats.info import BlockFormat, Format
from floatwise.language import Text

__all__ = ["format_facts"]

_OVERFLOW = {
    "infinity": Text("infinity", "无穷"),
    "nan": Text("NaN", "NaN"),
    "saturate": Text("the largest value (saturates)", "最大值（饱和）"),
}
_NANS = {
    "ieee": Text("exponent all ones, mantissa not zero", "指数全为 1 且尾数不为零"),
    "all_ones": Text("the code of all ones", "全为 1 的编码"),
    "negative_zero": Text("the code of minus zero", "负零的编码"),
    "none": Text("no code", "无编码"),
}
_YES_NO = {True: Text("yes", "有"), False: Text("no", "无")}
_NONE = Text("none", "无")


def format_facts(fmt: Format | BlockFormat | str) -> list[tuple[Text, str]]:
    """Returns the facts of a format or block format in the order of its page.

    Args:
      fmt: A row, or the name or alias of one.

    Returns:
      Pairs of a label and its value; values in words are in the current language.

    Raises:
      UnknownNameError: No row has the name.
    """
    row = find_format(fmt) if isinstance(fmt, str) else fmt
    return _block_facts(row) if isinstance(row, BlockFormat) else _scalar_facts(row)


def _scalar_facts(fmt: Format) -> list[tuple[Text, str]]:
    return [
        (Text("bits", "位数"), _layout(fmt)),
        (Text("bytes in memory", "占用字节"), _number(fmt.storage_bytes)),
        (Text("exponent bias", "指数偏置"), str(fmt.bias)),
        (Text("largest value", "最大值"), _magnitude(fmt.max)),
        (Text("smallest normal", "最小规格化数"), _magnitude(fmt.smallest_normal)),
        (Text("smallest subnormal", "最小非规格化数"), _smallest_subnormal(fmt)),
        (Text("ulp at 1", "1 处的 ulp"), _magnitude(fmt.epsilon)),
        (Text("significant bits", "有效位数"), str(fmt.mantissa_bits + 1)),
        (Text("consecutive integers up to", "连续整数上限"), _magnitude(_last_consecutive_integer(fmt))),
        (Text("dynamic range", "动态范围"), f"2^{fmt.dynamic_range_log2:.1f}"),
        (Text("rounds to zero", "舍入为零"), _flushed(fmt)),
        (Text("overflows", "上溢"), _overflowed(fmt)),
        (Text("overflow becomes", "上溢结果"), str(_OVERFLOW[fmt.overflow])),
        (Text("infinities", "无穷"), str(_YES_NO[fmt.infinities])),
        (Text("NaN", "NaN"), str(_NANS[fmt.nans])),
        (Text("source", "出处"), fmt.source),
        (Text("also called", "别名"), ", ".join(fmt.aliases)),
    ]


def _block_facts(fmt: BlockFormat) -> list[tuple[Text, str]]:
    tensor_scale = Text("float32, one per tensor", "float32，每个张量一个") if fmt.tensor_scale else _NONE
    return [
        (Text("element", "元素格式"), fmt.element.name),
        (Text("elements per block", "每块元素数"), str(fmt.block_size)),
        (Text("block scale", "块缩放因子"), fmt.scale.name),
        (Text("tensor scale", "张量缩放因子"), str(tensor_scale)),
        (Text("bits per element", "每元素位数"), _number(fmt.bits_per_element)),
        (Text("largest element", "最大元素"), _magnitude(fmt.element.max)),
        (Text("smallest element", "最小元素"), _magnitude(fmt.element.smallest_subnormal)),
        (Text("element's ulp at 1", "元素在 1 处的 ulp"), _magnitude(fmt.element.epsilon)),
        (Text("range within a block", "块内动态范围"), f"2^{fmt.block_range_log2:.1f}"),
        (Text("largest element times largest scale", "最大元素乘以最大缩放因子"), _magnitude(fmt.max)),
        (Text("source", "出处"), fmt.source),
        (Text("also called", "别名"), ", ".join(fmt.aliases) or str(_NONE)),
    ]


def _layout(fmt: Format) -> str:
    text = Text(
        "{bits} ({sign} sign, {exponent} exponent, {mantissa} mantissa)",
        "{bits}（符号 {sign}，指数 {exponent}，尾数 {mantissa}）",
    )
    return text.format(bits=fmt.bits, sign=int(fmt.signed), exponent=fmt.exponent_bits, mantissa=fmt.mantissa_bits)


def _smallest_subnormal(fmt: Format) -> str:
    if not fmt.zero:
        return str(Text("none, nor a zero", "无，也没有零"))
    return _magnitude(fmt.smallest_subnormal)


def _flushed(fmt: Format) -> str:
    if not fmt.zero:
        return str(Text("never: there is no zero", "从不：没有零"))
    # Not from flush_threshold: float64's own is below every Python float.
    exponent = fmt.min_exponent - fmt.mantissa_bits - 1
    return f"|x| <= {_magnitude(math.ldexp(1.0, exponent)) if fmt.flush_threshold else f'2^{exponent}'}"


def _overflowed(fmt: Format) -> str:
    if math.isinf(fmt.overflow_threshold):
        exponent, ulp_exponent = fmt.max_exponent + 1, fmt.max_exponent - fmt.mantissa_bits - 1
        return f"|x| >= 2^{exponent} - 2^{ulp_exponent}"
    return f"|x| {'>=' if fmt.overflow_inclusive else '>'} {_magnitude(fmt.overflow_threshold)}"


def _last_consecutive_integer(fmt: Format) -> float:
    """Largest n such that the format holds every integer from 1 to n."""
    return min(2.0 ** (fmt.mantissa_bits + 1), math.floor(fmt.max))


def _magnitude(value: float) -> str:
    """Powers of two as such, with the decimal number; other values, and plain ones, as the number alone."""
    mantissa, exponent = math.frexp(value)
    if mantissa == 0.5 and not 0.125 <= value <= 16:
        return f"2^{exponent - 1} ({_number(value)})"
    return _number(value)


def _number(value: float) -> str:
    """Whole numbers in full as far as float64 counts in ones, others to the 7 digits a float32 is worth."""
    return f"{value:.0f}" if float(value).is_integer() and value <= 2**53 else f"{value:.7g}"

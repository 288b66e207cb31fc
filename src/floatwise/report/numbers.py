# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them: `2.3×`, `1.2 GiB`, `2^13`, `0.03 %`.

How many digits are shown is a convention: two or three significant ones; speed and memory repeat no better.
"""

from __future__ import annotations

import math

__all__ = [
    "MISSING",
    "bytes_text",
    "bytes_unit",
    "count",
    "factor",
    "nearest_log2",
    "number",
    "percent",
    "power_of_two",
    "quantity",
    "ratio",
    "seconds",
    "seconds_unit",
]

MISSING = "–"
_SMALLEST_PERCENT = 1e-4
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL_UNITS = ("", " K", " M", " B", " T")
_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def factor(value: float) -> str:
    """Returns a factor without its sign, `2.3` or `0.62`; close to one it gets a digit more."""
    if not math.isfinite(value):
        return MISSING
    if value >= 10:
        return f"{value:.0f}"
    if value >= 2:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 or value == 0 else _positional(value, 2)


def ratio(value: float | None) -> str:
    """Returns a factor with its sign, `2.3×`."""
    return MISSING if value is None or not math.isfinite(value) else f"{factor(value)}×"


def bytes_text(value: int | None) -> str:
    """Returns a size in the binary units of the IEC, `1.2 GiB`."""
    if value is None:
        return MISSING
    unit_size, unit = bytes_unit(value)
    size = value / unit_size
    return f"{size:.1f} {unit}" if size < 100 and unit != "B" else f"{size:.0f} {unit}"


def bytes_unit(value: float) -> tuple[float, str]:
    """Returns the unit that suits a size: its bytes and its name."""
    size = 1.0
    for unit in _BINARY_UNITS:
        if round(value / size) < 1024 or unit == _BINARY_UNITS[-1]:
            break
        size *= 1024
    return size, unit


def percent(share: float | None) -> str:
    """Returns a share of one as a percentage, `0.03 %`; never 0 or 100 for what is only near it."""
    if share is None or not math.isfinite(share):
        return MISSING
    value = share * 100
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < _SMALLEST_PERCENT:
        return f"<{_SMALLEST_PERCENT:.4f} %"
    if value < 10:
        return f"{_positional(value, 2)} %"
    return f"{value:.1f} %" if value < 99.95 or value > 100 else ">99.9 %"


def power_of_two(value: float) -> str:
    """Returns `2^13` for an exact power of two, else the number."""
    if value > 0 and math.isfinite(value):
        mantissa, exponent = math.frexp(value)
        if mantissa == 0.5:
            return f"2^{exponent - 1}"
    return quantity(value)


def number(value: float) -> str:
    """Returns a setting: `2^16` for a large or small power of two, else its digits."""
    exact = value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5
    return power_of_two(value) if exact and not 2**-4 <= value < 2**10 else f"{value:g}"


def nearest_log2(value: float) -> int:
    """Returns the exponent of the power of two next to a loss scale; 0 where there is none."""
    return round(math.log2(value)) if value > 0 and math.isfinite(value) else 0


def seconds(value: float | None) -> str:
    """Returns a duration in the unit that suits it, `84.0 ms`."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0 s"
    size, unit = seconds_unit(value)
    return f"{_positional(value / size, 3)} {unit}"


def seconds_unit(value: float) -> tuple[float, str]:
    """Returns the unit that suits a duration: its seconds and its name."""
    suitable = (row for row in _SECOND_UNITS if abs(value) >= row[0] * 0.9995)
    return next(suitable, _SECOND_UNITS[-1])


def count(value: int) -> str:
    """Returns a count of things, `124 M`."""
    size, units = float(value), iter(_DECIMAL_UNITS)
    unit = next(units)
    while round(size) >= 1000 and unit != _DECIMAL_UNITS[-1]:
        size, unit = size / 1000, next(units)
    return f"{size:.1f}{unit}" if size < 100 and unit else f"{size:.0f}{unit}"


def quantity(value: float | None) -> str:
    """Returns any magnitude in four digits, with an exponent only where zeros would be hard to count."""
    if value is None:
        return MISSING
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.4g}"


def _positional(value: float, digits: int) -> str:
    """Returns `value` in so many significant digits, without an exponent."""
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text and digits <= 2 else text

# SPDX-License-Identifier: Apache-2.0
"""How the values of a role are spread over powers of two, by module: what the exponent figure and its tables show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from floatwise.formats import Format, get_format
from floatwise.language import Text
from floatwise.probe.recording import Recording
from floatwise.report.folding import fold_paths
from floatwise.report.islands import module_name
from floatwise.stats import TensorSummary
from floatwise.stats.histogram import EXPONENT_BIAS, EXPONENT_BINS

__all__ = [
    "GRADIENT_ROLES",
    "MOST_ROWS",
    "ROLES",
    "ExponentRow",
    "RoleExponents",
    "Spread",
    "fate",
    "fates",
    "role_exponents",
]

#: In the order in which a reader meets them: gradients decide about float16, so they come first.
ROLES = ("grad_output", "weight_grad", "output", "input", "weight", "update")
#: Roles that a loss scale multiplies.
GRADIENT_ROLES = frozenset({"grad_output", "weight_grad"})
#: Rows that fit on one screen beside their histogram (convention); more modules are folded into patterns.
MOST_ROWS = 36
#: Powers of two that are told apart: what lies lower is counted in the lowest (convention: enough for any 16-bit
#: format under any loss scale beside float32's far end).
_MOST_COLUMNS = 72

_OTHERS = Text("{n} other modules", "其余 {n} 个模块")


@dataclass(frozen=True)
class Spread:
    """Shares of all values of a summary, which add up to 1.

    Attributes:
      zero: Exactly zero.
      by_exponent: From 2^low on, values in [2^e, 2^(e+1)); the first has all that are smaller, too.
      nonfinite: Infinities and NaN.
    """

    zero: float
    by_exponent: tuple[float, ...]
    nonfinite: float


@dataclass(frozen=True)
class ExponentRow:
    """One module, or several that differ by a number.

    Attributes:
      name: Path, or pattern of paths.
      modules: How many.
      summary: Their values, merged.
      spread: Over the role's exponents.
    """

    name: str
    modules: int
    summary: TensorSummary
    spread: Spread


@dataclass(frozen=True)
class RoleExponents:
    """One role's values.

    Attributes:
      role: `grad_output`, …
      low: Lowest exponent that is told apart.
      high: Highest exponent that occurs.
      cut: Whether smaller values are counted at `low`.
      whole: All modules together.
      rows: By module, in the model's order.
    """

    role: str
    low: int
    high: int
    cut: bool
    whole: ExponentRow
    rows: tuple[ExponentRow, ...]


def role_exponents(recording: Recording, role: str) -> RoleExponents | None:
    """Returns how the values of a role are spread; None where none was seen."""
    summaries = {path: summary for path, summary in recording.role(role).items() if summary.seen}
    if not summaries:
        return None
    everything = reduce(TensorSummary.merge, summaries.values())
    low, high = _bounds(everything)
    lowest = max(low, high - _MOST_COLUMNS + 1)
    groups = _groups(_in_order(summaries, recording), MOST_ROWS)
    rows = tuple(_row(name, [summaries[path] for path in paths], lowest, high) for name, paths in groups.items())
    whole = _row("", list(summaries.values()), lowest, high)
    return RoleExponents(role, lowest, high, low < lowest, whole, rows)


def fate(fmt: Format, exponent: int, scale_log2: int = 0) -> str:
    """Returns what a format does to values in [2^exponent, 2^(exponent+1)) times a scale.

    Returns:
      `zero`, `subnormal`, `normal` or `overflow`, the worst that happens to most of the bin; as `floatwise.stats`
      counts them, but for the bin that ends in overflow.
    """
    upper = exponent + 1 + scale_log2
    if fmt.flush_threshold and upper <= math.log2(fmt.flush_threshold):
        return "zero"
    if upper <= fmt.min_exponent:
        return "subnormal"
    return "normal" if upper <= math.ceil(math.log2(fmt.max)) else "overflow"


def fates(values: RoleExponents, shift: int) -> frozenset[str]:
    """Returns everything that float16 does to values of the role times 2**shift; `already` and `nonfinite`, too."""
    spread, fmt = values.whole.spread, get_format("float16")
    there = {fate(fmt, exponent, shift) for exponent, share in enumerate(spread.by_exponent, values.low) if share}
    there |= {name for name, share in (("already", spread.zero), ("nonfinite", spread.nonfinite)) if share}
    return frozenset(there)


def _row(name: str, summaries: Sequence[TensorSummary], low: int, high: int) -> ExponentRow:
    merged = reduce(TensorSummary.merge, summaries)
    return ExponentRow(name, len(summaries), merged, _spread(merged, low, high))


def _spread(summary: TensorSummary, low: int, high: int) -> Spread:
    counts, seen = summary.counts, summary.seen
    first = low + EXPONENT_BIAS
    smaller = int(counts[:first].sum()) - summary.zeros
    shares = [int(count) / seen for count in counts[first : high + EXPONENT_BIAS + 1]]
    shares[0] += smaller / seen
    return Spread(summary.zeros / seen, tuple(shares), int(counts[EXPONENT_BINS - 1]) / seen)


def _bounds(summary: TensorSummary) -> tuple[int, int]:
    nonzero = summary.counts[: EXPONENT_BINS - 1].copy()
    nonzero[0] -= summary.zeros
    found = nonzero.nonzero()[0]
    if not len(found):
        return 0, 0
    # Subnormals of float32, in bin 0, are counted with its smallest normals.
    return max(int(found[0]), 1) - EXPONENT_BIAS, max(int(found[-1]), 1) - EXPONENT_BIAS


def _in_order(summaries: Mapping[str, TensorSummary], recording: Recording) -> list[str]:
    places = {site.path: index for index, site in enumerate(recording.sites)}
    # Parameters stand where their module does; what has no site comes last, as recorded.
    return sorted(summaries, key=lambda path: places.get(path, places.get(path.rpartition(".")[0], len(places))))


def _groups(paths: Sequence[str], most: int) -> dict[str, list[str]]:
    """Returns at most `most` names and the paths behind them: single, folded, cut to fewer parts, or the rest."""
    if len(paths) <= most:
        return {module_name(path): [path] for path in paths}
    depth = max(path.count(".") for path in paths) + 1
    for parts in range(depth, 0, -1):
        groups = _cut(paths, parts)
        if len(groups) <= most:
            return groups
    names = list(groups)
    rest = [path for name in names[most - 1 :] for path in groups[name]]
    return {**{name: groups[name] for name in names[: most - 1]}, _OTHERS.format(n=len(rest)): rest}


def _cut(paths: Sequence[str], parts: int) -> dict[str, list[str]]:
    below: dict[str, list[str]] = {}
    for path in paths:
        pieces = path.split(".")
        stem = ".".join(pieces[:parts]) + (".**" if len(pieces) > parts else "")
        below.setdefault(stem, []).append(path)
    folded = fold_paths(module_name(stem) for stem in below)
    named = {module_name(stem): members for stem, members in below.items()}
    return {entry.pattern: [path for stem in entry.paths for path in named[stem]] for entry in folded}

# SPDX-License-Identifier: Apache-2.0
"""Which module to try in float32 next, read from the evidence of a rehearsal that did not pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.comparison_rows import ModuleRow
from floatwise.rehearse.evidence import Evidence

__all__ = ["LEAST_LOST_DB", "Suspect", "contains", "suspects"]

#: A module that loses less than this keeps more than nine tenths of what it is given.
LEAST_LOST_DB = 10.0


class Suspect(NamedTuple):
    """A module and what points to it."""

    module: str
    reason: Evidence


def suspects(comparison: Comparison) -> Iterator[Suspect]:
    """Yields modules to try, the most likely first, each once, and never the outermost one.

    First the module of the operator that made the first infinity or NaN, then those around it; then the layer whose
    operands float8 makes zero; then modules whose outputs are much noisier than their inputs, the part that loses most
    before the whole; then those that hold the worst gradients; then those with the largest values.
    """
    seen: set[str] = set()
    for suspect in _all(comparison):
        if suspect.module and suspect.module not in seen:
            seen.add(suspect.module)
            yield suspect


def contains(outer: str, inner: str) -> bool:
    """Returns whether `inner` is `outer` or lies in it."""
    return inner == outer or inner.startswith(f"{outer}.")


def _all(comparison: Comparison) -> Iterator[Suspect]:
    found = comparison.first_nonfinite
    if found is not None:
        for path in _outwards(found.module):
            yield Suspect(path, Evidence.of_nonfinite(found))
    for remark in comparison.remarks:
        if remark.code == "float8_vanishes":
            yield Suspect(remark.data["module"], remark)
    for module in _parts_first(comparison.modules):
        data = {"module": module.module, "input_db": _db(module.input_db), "output_db": _db(module.output_db)}
        yield Suspect(module.module, Evidence("loses_precision", data))
    wrong = [row for row in comparison.gradients if row.is_wrong]
    for row in sorted(wrong, key=lambda row: row.sqnr_db - row.required_db):  # type: ignore[operator]
        data = {
            "parameter": row.parameter,
            "sqnr_db": _db(row.sqnr_db or 0.0),
            "required_db": _db(row.required_db or 0.0),
        }
        yield Suspect(row.parameter.rpartition(".")[0], Evidence("holds_wrong_gradient", data))
    for module in sorted(comparison.modules, key=lambda row: (-row.amax, -row.module.count("."))):
        data = {"module": module.module, "amax": f"{module.amax:.4g}"}
        yield Suspect(module.module, Evidence("largest_values", data))


def _parts_first(rows: Sequence[ModuleRow]) -> Iterator[ModuleRow]:
    """Yields modules that lose much: before each, those in it that lose at least half as many decibels."""
    losing = [row for row in rows if row.lost_db >= LEAST_LOST_DB]
    for row in losing:
        inside = [part for part in losing if part.module != row.module and contains(row.module, part.module)]
        yield from (part for part in inside if part.lost_db >= row.lost_db / 2)
        yield row


def _outwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


def _db(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else str(value)

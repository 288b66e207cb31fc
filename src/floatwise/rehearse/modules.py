# SPDX-License-Identifier: Apache-2.0
"""Where in the forward pass precision is lost: each module's output against its inputs, both held against float32."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

from floatwise.formats import get_format
from floatwise.rehearse.comparison_rows import ModuleRow
from floatwise.rehearse.first_look import FirstLook
from floatwise.rehearse.sqnr import sqnr_db

__all__ = ["module_rows"]


def module_rows(baseline: FirstLook, trial: FirstLook, fmt: str) -> tuple[ModuleRow, ...]:
    """Returns a row for each module that both runs called, those that lose most first, inner before outer ones."""
    once = -20 * math.log10(get_format(fmt).epsilon / math.sqrt(12))
    worst: dict[str, ModuleRow] = {}
    for (path, number), true in baseline.calls.items():
        seen = trial.calls.get((path, number))
        if seen is None:
            continue
        incoming = min(_worst_db(true.inputs, seen.inputs), once)
        outgoing = min(_worst_db(true.outputs, seen.outputs), once)
        amax = max((float(t.abs().max()) for t in (*true.inputs, *true.outputs) if t.numel()), default=0.0)
        row = ModuleRow(path, incoming, outgoing, amax)
        if path not in worst or _lost(row) > _lost(worst[path]):
            worst[path] = row
    return tuple(sorted(worst.values(), key=lambda row: (-_lost(row), -row.module.count("."), row.module)))


def _lost(row: ModuleRow) -> float:
    return 0.0 if math.isnan(row.lost_db) else row.lost_db


def _worst_db(true: Iterable[Tensor], seen: Iterable[Tensor]) -> float:
    pairs = [(a, b) for a, b in zip(true, seen, strict=False) if a.shape == b.shape]
    ratios = [ratio for a, b in pairs if (ratio := sqnr_db(a, b)) is not None]
    return min(ratios, default=math.inf)

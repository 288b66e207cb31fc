# SPDX-License-Identifier: Apache-2.0
"""Every loss curve that is known: float32, each rehearsal, and what was really run under the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from floatwise.language import Text
from floatwise.planner.decision import Decision, Measured
from floatwise.probe.recording import Recording
from floatwise.rehearse.comparison import Comparison
from floatwise.report.plain import plain

__all__ = ["Curve", "LossCurves", "loss_curves"]

Kind = Literal["measured", "rehearsed", "without_islands"]

_NAMES = {
    "measured": Text("{recipe}, run here", "{recipe}（在本机运行）"),
    "rehearsed": Text("{recipe}, rehearsed", "{recipe}（预演）"),
    "without_islands": Text("{recipe}, rehearsed without islands", "{recipe}（无孤岛预演）"),
}


@dataclass(frozen=True)
class Curve:
    """One run and the float32 run with its seeds and batches.

    Attributes:
      recipe: What it ran under.
      kind: `measured`, `rehearsed` (with the plan's islands) or `without_islands`.
      losses: Loss of each step, from step 1 on.
      float32: The same of the float32 run.
      allowed: How far from float32's its final loss may be; None where that is not known.
    """

    recipe: str
    kind: Kind
    losses: tuple[float, ...]
    float32: tuple[float, ...]
    allowed: float | None

    @property
    def name(self) -> str:
        """What a legend calls it."""
        return _NAMES[self.kind].format(recipe=plain(self.recipe))

    @property
    def differences(self) -> tuple[float, ...]:
        """Loss less float32's, step by step; NaN where either is not finite."""
        return tuple(
            mine - theirs if math.isfinite(mine) and math.isfinite(theirs) else math.nan
            for mine, theirs in zip(self.losses, self.float32, strict=False)
        )


@dataclass(frozen=True)
class LossCurves:
    """All of them.

    Attributes:
      float32: The longest float32 run.
      spread: Step by step, how far float32 runs are apart; empty where only one is known.
      curves: The others, each once.
    """

    float32: tuple[float, ...]
    spread: tuple[float, ...]
    curves: tuple[Curve, ...]


def loss_curves(decisions: Iterable[Decision], recording: Recording) -> LossCurves | None:
    """Returns the curves of all decisions; None where no loss was seen."""
    found: dict[tuple[str, str, tuple[float, ...]], Curve] = {}
    spreads: list[tuple[float, ...]] = []
    for decision in decisions:
        for curve in _rehearsed(decision, spreads):
            found.setdefault((curve.recipe, curve.kind, _comparable(curve.losses)), curve)
        if decision.measured is not None:
            for curve in _measured(decision.measured):
                found.setdefault((curve.recipe, curve.kind, _comparable(curve.losses)), curve)
    curves = tuple(found.values())
    float32 = max((*(curve.float32 for curve in curves), recording.losses), key=len)
    if not any(map(math.isfinite, float32)) and not curves:
        return None
    return LossCurves(tuple(float32), max(spreads, key=len, default=()), curves)


def _comparable(losses: Sequence[float]) -> tuple[float, ...]:
    return tuple(loss if math.isfinite(loss) else math.inf for loss in losses)  # NaN equals nothing


def _rehearsed(decision: Decision, spreads: list[tuple[float, ...]]) -> Iterator[Curve]:
    for verdict in decision.verdicts:
        if verdict.rehearsal is None:
            continue
        first, last = verdict.rehearsal.first, verdict.rehearsal.last
        spreads.append(tuple(row.spread for row in last.losses))
        with_islands = _curve(verdict.recipe, last)
        alone = _curve(verdict.recipe, first)
        if alone is not None and verdict.rehearsal.status == "accept_with_islands":
            yield replace(alone, kind="without_islands", allowed=None)
        if with_islands is not None:
            yield with_islands


def _curve(recipe: str, comparison: Comparison) -> Curve | None:
    if not comparison.losses:
        return None
    losses = tuple(row.rehearsed for row in comparison.losses)
    return Curve(recipe, "rehearsed", losses, tuple(row.float32 for row in comparison.losses), comparison.tolerance)


def _measured(measured: Measured) -> Iterator[Curve]:
    planned, float32 = (tuple(measured.losses.get(name, ())) for name in ("planned", "float32"))
    if planned or float32:
        parity = measured.loss_parity
        allowed = (parity.spread[1] - parity.spread[0]) / 2 if parity is not None else None
        yield Curve(measured.recipe, "measured", planned, float32, allowed)

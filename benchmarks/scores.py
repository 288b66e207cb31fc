# SPDX-License-Identifier: Apache-2.0
"""What the runs of one size come to: a score for each variant, as a table and as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contest import Contestant
from turns import ratio

from floatwise.errors import ScriptError
from floatwise.planner.decision import LossParity
from floatwise.planner.measure import loss_parity

__all__ = ["Score", "SizeScores", "score_size", "table"]

#: Median, lower and upper quartile.
Ratio = tuple[float, float, float]

_KINDS = ("weights", "gradients", "states", "casts", "all")


@dataclass(frozen=True, kw_only=True)
class Score:
    """A variant's figures.

    Attributes:
      speed: Steps/s against `float32` and against `autocast`, from neighbouring steps.
      memory_ratio: Peak of tensor memory against float32.
      peak_bytes: The peak itself.
      bytes_per_parameter: By kind, and `all`.
      other_bytes: What lives between steps beside those kinds.
      final_loss: Mean of the last losses.
      within_spread: Whether it is as near to float32's as float32's seeds are to one another; None when unknown.
    """

    speed: Mapping[str, Ratio]
    memory_ratio: float
    peak_bytes: int
    bytes_per_parameter: Mapping[str, float]
    other_bytes: int
    final_loss: float | None
    within_spread: bool | None


@dataclass(frozen=True, kw_only=True)
class SizeScores:
    """All that was measured of one size.

    Attributes:
      parameters: Of the model.
      steps: Each variant's, those that are not timed included.
      scores: By variant.
      failures: Why a variant has no score.
      float32_losses: Final losses of float32 by seed; empty when only one trained.
      loss_range: Where a variant's final loss must lie; None when only one seed trained.
    """

    parameters: int
    steps: int
    scores: Mapping[str, Score]
    failures: Mapping[str, str]
    float32_losses: tuple[float, ...]
    loss_range: tuple[float, float] | None

    def plain(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return asdict(self)


def score_size(
    groups: Iterable[Mapping[str, Contestant]], steps: int, other_seeds: Sequence[Sequence[float]]
) -> SizeScores:
    """Returns the scores of the groups of one size.

    Args:
      groups: The runs, each group with both references; these count where they come first.
      steps: Training steps of each.
      other_seeds: Losses of float32 with other seeds; without any, no loss is judged.

    Raises:
      ScriptError: A reference failed, and there is nothing to compare with.
    """
    scores: dict[str, Score] = {}
    failures: dict[str, str] = {}
    parameters, own = 0, None
    for group in groups:
        plain, by_hand = group["float32"], group["autocast"]
        if plain.failed or by_hand.failed:
            raise ScriptError(f"there is nothing to compare with: {plain.failed or by_hand.failed}")
        parameters = plain.result["parameters"]
        seeds = [plain.losses, *other_seeds]
        own = loss_parity(plain.losses, seeds) if other_seeds else None
        for name, run in group.items():
            if run.failed:
                failures[name] = run.failed
            else:
                parity = loss_parity(run.losses, seeds) if other_seeds else None
                scores.setdefault(name, _score(run, plain, by_hand, parity))
    return SizeScores(
        parameters=parameters,
        steps=steps,
        scores=scores,
        failures=failures,
        float32_losses=own.float32 if own else (),
        loss_range=own.spread if own else None,
    )


def _score(run: Contestant, plain: Contestant, by_hand: Contestant, parity: LossParity | None) -> Score:
    return Score(
        speed={"float32": ratio(plain, run), "autocast": ratio(by_hand, run)},
        memory_ratio=run.result["peak_bytes"] / plain.result["peak_bytes"],
        peak_bytes=run.result["peak_bytes"],
        bytes_per_parameter=run.result["bytes_per_parameter"],
        other_bytes=run.result["other_bytes"],
        final_loss=parity.planned if parity else None,
        within_spread=parity.within_spread if parity else None,
    )


def table(name: str, size: SizeScores) -> Iterator[str]:
    """Yields the lines of a size's table."""
    yield f"{name}: {size.parameters / 1e6:.1f} M parameters, {size.steps} steps"
    yield (f"{'':19}{'steps/s against':38}{'peak memory':>13}  {'bytes per parameter':40}{'other':>7}{'last':>9}")
    yield (
        f"{'':19}{'float32':19}{'autocast by hand':19}{'/ float32':>13}  "
        + "".join(f"{kind:>{width}}" for kind, width in zip(_KINDS, _WIDTHS, strict=True))
        + f"{'MiB':>7}{'loss':>9}"
    )
    for variant, score in size.scores.items():
        yield _line(variant, score)
    for variant, reason in size.failures.items():
        yield f"{variant:19}not measured: {reason}"
    if size.loss_range is not None:
        low, high = size.loss_range
        seeds = ", ".join(f"{loss:.4f}" for loss in size.float32_losses)
        yield f"float32 with three seeds: {seeds}; * marks a loss outside {low:.4f} to {high:.4f}"


_WIDTHS = (7, 10, 8, 7, 8)


def _line(variant: str, score: Score) -> str:
    speed = "".join(f"{_ratio(score.speed[reference]):19}" for reference in ("float32", "autocast"))
    per = score.bytes_per_parameter
    kinds = "".join(f"{per[kind]:{width}.2f}" for kind, width in zip(_KINDS, _WIDTHS, strict=True))
    loss = "" if score.final_loss is None else f"{score.final_loss:9.4f}{'' if score.within_spread else '*'}"
    return f"{variant:19}{speed}{score.memory_ratio:13.2f}  {kinds}{score.other_bytes / 2**20:7.1f}{loss}".rstrip()


def _ratio(ratio: Ratio) -> str:
    median, low, high = ratio
    return f"{median:.2f} ({low:.2f}-{high:.2f})"

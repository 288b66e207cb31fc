# SPDX-License-Identifier: Apache-2.0
"""What is required of `bf16-master` in mode split, judged from the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scores import Ratio, SizeScores

__all__ = ["Verdict", "judge_size", "judge_update"]

#: Steps/s against autocast by hand with fused AdamW, at least.
SPEED_LIMITS = {"text_gpt": 1.00, "gpt_100m": 1.05}
#: With float32 Adam states: weight and gradient 2 each, trailing bits 2, states 8. Autocast: 16 and the casts.
BYTES_LIMIT = 14.0
#: Time of the update against fused AdamW on float32 weights: under what a prototype of PyTorch's operators took, and
#: at most this with the compiled kernel.
UPDATE_LIMITS = {"split, plain": ("under", 2.3), "split, kernel": ("at most", 1.3)}


@dataclass(frozen=True)
class Verdict:
    """One requirement.

    Attributes:
      what: The requirement with its limit.
      found: The figure, or why there is none.
      passed: None when it could not be measured here.
    """

    what: str
    found: str
    passed: bool | None

    def __str__(self) -> str:
        """Returns the line to print."""
        word = {True: "pass", False: "FAIL", None: "not measured"}[self.passed]
        return f"{word}: {self.what}: {self.found}"


def judge_size(name: str, size: SizeScores) -> Iterator[Verdict]:
    """Yields the verdicts on one size; none on a size without limits, or when mode split was not asked for."""
    if name not in SPEED_LIMITS:
        return
    if "split" in size.failures:
        yield Verdict(f"{name}, split trains", size.failures["split"], False)
    if "split" not in size.scores:
        return
    split, limit = size.scores["split"], SPEED_LIMITS[name]
    what = f"{name}, split at least {limit:.2f} x the steps/s of autocast by hand"
    yield Verdict(what, _shown(split.speed["autocast"]), split.speed["autocast"][0] >= limit)
    # The step counters of AdamW, 4 bytes for each parameter tensor, are beyond the second decimal.
    found = round(split.bytes_per_parameter["all"], 2)
    yield Verdict(f"{name}, split at most {BYTES_LIMIT:.0f} bytes per parameter", f"{found:.2f}", found <= BYTES_LIMIT)
    if size.loss_range is not None:
        low, high = size.loss_range
        what = f"{name}, split's last loss within float32's spread, {low:.4f} to {high:.4f}"
        yield Verdict(what, f"{split.final_loss:.4f}", split.within_spread)


def judge_update(update: Mapping[str, Ratio | str]) -> Iterator[Verdict]:
    """Yields the verdicts on the update alone, from each way's time against fused AdamW's, or why it has none."""
    for way, (bound, limit) in UPDATE_LIMITS.items():
        what = f"update alone, {way}: {bound} {limit:.1f} x the time of fused AdamW"
        found = update[way]
        if isinstance(found, str):
            yield Verdict(what, found, None)
        else:
            yield Verdict(what, _shown(found), found[0] < limit or (bound == "at most" and found[0] == limit))


def _shown(ratio: Ratio) -> str:
    median, low, high = ratio
    return f"{median:.3f} ({low:.3f}-{high:.3f})"

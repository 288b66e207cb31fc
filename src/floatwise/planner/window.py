# SPDX-License-Identifier: Apache-2.0
"""The loss scales that lose no gradient, from the exponents of one or more float32 steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from floatwise.formats import get_format
from floatwise.planner.decision import Island
from floatwise.planner.forward_range import covered
from floatwise.probe.recording import Recording
from floatwise.stats import TensorSummary, underflow_share

__all__ = ["WindowEstimate", "loss_scale_window", "underflow_at"]

#: A scale is too small where more than this share of the nonzero gradients is flushed (AdaLoss's threshold, Zhao et
#: al. 2019).
FLUSHED_SHARE = 1e-3
#: Scales looked at, as powers of two: float32 gradients lie between 2^-149 and 2^127, and a scale is a float32.
_LOWEST, _HIGHEST = -120, 120


@dataclass(frozen=True)
class WindowEstimate:
    """The window and what bounds it.

    Attributes:
      lo: Least power of two at which fewer than `FLUSHED_SHARE` of the gradients vanish; above `hi` when there is
        no window.
      hi: Largest power of two at which none overflows.
      largest: Site or parameter that bounds it from above.
      amax: Its largest magnitude.
      outputs: Summaries of the gradients of the 16-bit products' outputs, by site.
    """

    lo: int
    hi: int
    largest: str
    amax: float
    outputs: Mapping[str, TensorSummary]

    def worst_loss_at(self, scale_log2: int) -> tuple[str, float]:
        """Returns the site that loses most of its gradient at a scale, and which share of its magnitude.

        Counts alone would mislead here: where a loss has reached zero, most gradients are too small to matter.
        """
        lost = {site: _magnitude_lost(summary, scale_log2) for site, summary in self.outputs.items()}
        worst = max(lost, key=lambda site: lost[site], default="")
        return worst, lost.get(worst, 0.0)


def loss_scale_window(recording: Recording, islands: Iterable[Island] = ()) -> WindowEstimate | None:
    """Predicts the loss-scale window of float16 training with the given islands.

    Gradients that float16 holds are those of the outputs of 16-bit products, and those of the weights of these
    products before they are accumulated.

    Returns:
      None when no gradient was recorded.
    """
    inside = tuple(islands)
    gradients = list(_sixteen_bit_gradients(recording, inside))
    if not gradients:
        return None
    largest, summary = max(gradients, key=lambda item: item[1].amax)
    if summary.amax == 0:
        return None
    outputs = {p: s for p, s in recording.role("grad_output").items() if _is_sixteen_bit(recording, p, inside)}
    scales = range(_LOWEST, _HIGHEST)
    lo = next((k for k in scales if underflow_at(outputs.values(), k) < FLUSHED_SHARE), _HIGHEST)
    return WindowEstimate(lo, _largest_exponent(summary.amax), largest, summary.amax, outputs)


def underflow_at(summaries: Iterable[TensorSummary], scale_log2: int) -> float:
    """Returns the share of all nonzero values that float16 flushes at a scale, each tensor weighted by its size."""
    flushed = total = 0.0
    for summary in summaries:
        seen = float(summary.counts.sum())
        nonzero = (seen - summary.zeros) / seen * summary.elements if seen else 0.0
        flushed += underflow_share(summary, get_format("float16"), scale_log2) * nonzero
        total += nonzero
    return flushed / total if total else 0.0


def _magnitude_lost(summary: TensorSummary, scale_log2: int) -> float:
    exponents = np.arange(1, 255) - 127
    magnitudes = summary.counts[1:255] * np.exp2(exponents.astype(np.float64))
    total = float(magnitudes.sum())
    smallest = get_format("float16").flush_threshold
    # A bin holds magnitudes up to twice its power of two; it vanishes when all of them do.
    lost = float(magnitudes[exponents + 1 + scale_log2 <= math.log2(smallest)].sum())
    return lost / total if total else 0.0


def _largest_exponent(amax: float) -> int:
    exponent = math.floor(math.log2(get_format("float16").overflow_threshold / amax))
    return exponent if amax * 2.0**exponent < get_format("float16").overflow_threshold else exponent - 1


def _sixteen_bit_gradients(recording: Recording, islands: tuple[Island, ...]) -> Iterator[tuple[str, TensorSummary]]:
    for path, summary in recording.role("grad_output").items():
        if _is_sixteen_bit(recording, path, islands):
            yield path, summary
    inside = [site for site in recording.matrix_sites if not covered(site.path, islands)]
    weights = {name for site in inside for name in site.weights}
    modules = {site.path for site in inside}
    for parameter, summary in recording.role("weight_grad").items():
        if parameter in weights or parameter.rpartition(".")[0] in modules:
            yield parameter, summary


def _is_sixteen_bit(recording: Recording, path: str, islands: tuple[Island, ...]) -> bool:
    return any(site.path == path for site in recording.matrix_sites) and not covered(path, islands)

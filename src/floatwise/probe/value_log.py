# SPDX-License-Identifier: Apache-2.0
"""Values handed over by frameworks other than PyTorch, as NumPy samples: summaries by place, and lost updates."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatwise.formats import get_format, round_to_format
from floatwise.probe.recording import Stall
from floatwise.stats import TensorSummary, summarise

__all__ = ["SAMPLED_ELEMENTS", "ValueLog"]

#: Elements of a tensor that are handed over: a share of 0.1 % is known to ±0.05 % from so many (binomial, two
#: deviations); its amax is exact all the same.
SAMPLED_ELEMENTS = 1 << 14
#: Elements of a parameter whose updates are compared, and how often one place is looked at per iteration.
_COMPARED_ELEMENTS, _LOOKS_PER_ITERATION = 1 << 12, 8
#: Elements per tensor that go into the signal-to-noise ratio, which needs float64.
_SQNR_ELEMENTS = 1 << 11
_FORMATS = ("float16", "bfloat16")

Values = NDArray[np.floating[Any]]


class ValueLog:
    """Collects values by (path, role); every method may be called in any thread.

    Args:
      full: Every element is handed over, not a sample.
    """

    def __init__(self, full: bool = False) -> None:
        #: Elements to hand over per tensor at most, evenly strided; None for all.
        self.sampled = None if full else SAMPLED_ELEMENTS
        self._lock = threading.Lock()
        self._summaries: dict[tuple[str, str], TensorSummary] = {}
        self._looks: Counter[tuple[str, str]] = Counter()
        self._last: dict[str, Values] = {}
        self._moved: Counter[str] = Counter()
        self._lost: Counter[tuple[str, str]] = Counter()

    def add(self, path: str, role: str, sample: Values, elements: int, amax: float) -> None:
        """Adds a tensor's values.

        Args:
          path: Of the site or parameter.
          role: What the tensor is there (`output`, `weight_grad`, …).
          sample: Some or all of its elements, of any shape.
          elements: Elements that the tensor has.
          amax: Its largest finite magnitude; 0.0 where it has none.
        """
        if not elements:
            return
        key = path, role
        with self._lock:
            self._looks[key] += 1
            if self._looks[key] > _LOOKS_PER_ITERATION:
                return  # an unrolled loop comes here thousands of times
        seen = _summary(sample, elements, float(amax))
        with self._lock:
            known = self._summaries.get(key)
            self._summaries[key] = seen if known is None else known + seen

    def weights(self, samples: Mapping[str, Values]) -> None:
        """Adds all parameters as they are before an update, and what the last update has made of them.

        Ends an iteration: places are looked at anew.
        """
        with self._lock:
            self._looks.clear()
            last = self._last
            self._last = {path: _few(sample, _COMPARED_ELEMENTS).copy() for path, sample in samples.items()}
        for path, new in self._last.items():
            old = last.get(path)
            if old is not None and old.shape == new.shape:
                self._compare(path, old, new)

    def summaries(self) -> dict[tuple[str, str], TensorSummary]:
        """Returns what was added, by path and role."""
        with self._lock:
            return dict(self._summaries)

    def stalls(self) -> tuple[Stall, ...]:
        """Returns one row per parameter that has moved."""
        with self._lock:
            return tuple(
                Stall(path, moved, {name: self._lost[path, name] for name in _FORMATS})
                for path, moved in self._moved.items()
                if moved
            )

    def _compare(self, path: str, old: Values, new: Values) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            update = new - old
        finite = np.abs(update[np.isfinite(update)])
        self.add(path, "update", update, update.size, float(finite.max(initial=0.0)))
        with self._lock:
            self._moved[path] += int(np.count_nonzero(update))
            for name in _FORMATS:
                self._lost[path, name] += int(np.count_nonzero(_rounds_back(old, update, name)))


def _summary(sample: Values, elements: int, amax: float) -> TensorSummary:
    noise = summarise(_few(sample, _SQNR_ELEMENTS), _FORMATS)
    counted = summarise(sample, ())
    return replace(counted, elements=elements, amax=amax, signal=noise.signal, noise=noise.noise)


def _few(sample: Values, most: int) -> Values:
    flat = np.asarray(sample, dtype=np.float32).reshape(-1)
    # An odd stride does not fall in step with power-of-two rows and see one column only.
    stride = (flat.size // most) | 1 if flat.size > most else 1
    return flat[::stride]


def _rounds_back(weight: Values, update: Values, name: str) -> NDArray[np.bool_]:
    """Returns where a weight stored in the format stays as it is: the rule is exact, see `floatwise.probe.updates`."""
    row = get_format(name)
    stored = round_to_format(weight, row)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = round_to_format(stored + update, row)
    same: NDArray[np.bool_] = (moved == stored) & (update != 0)
    return same

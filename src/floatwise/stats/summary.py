# SPDX-License-Identifier: Apache-2.0
"""What is kept of a tensor's values: small, mergeable over steps and ranks, and storable as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatwise.errors import BadInputError
from floatwise.formats import Format, get_format
from floatwise.stats.histogram import EXPONENT_BINS

__all__ = ["TensorSummary"]


@dataclass(frozen=True, eq=False)
class TensorSummary:
    """The values of one tensor, or of many merged.

    A large tensor may be sampled: all but `amax`, `elements` and `observations` are of the values seen.

    Attributes:
      counts: Values by biased float32 exponent, int64 of shape (256,); see `exponent_counts`.
      amax: Largest finite magnitude of the whole tensors, exact; 0.0 when there is none.
      elements: Values of the whole tensors.
      zeros: Zeros of either sign.
      nonfinite: Infinities and NaN.
      signal: Sum of squares of the finite values that `noise` was measured on.
      noise: By format, the sum of squares of the errors that rounding to it, saturating, makes.
      observations: Tensors merged.
    """

    counts: NDArray[np.int64]
    amax: float
    elements: int
    zeros: int
    nonfinite: int
    signal: float
    noise: Mapping[str, float]
    observations: int

    def __post_init__(self) -> None:
        counts = np.array(self.counts)
        if counts.shape != (EXPONENT_BINS,) or counts.dtype.kind not in "iu":
            raise BadInputError(
                f"got counts of shape {counts.shape} and type {counts.dtype}; "
                f"allowed: {EXPONENT_BINS} integers, as exponent_counts returns"
            )
        counts = counts.astype(np.int64)
        counts.flags.writeable = False
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "noise", dict(self.noise))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSummary):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __add__(self, other: TensorSummary) -> TensorSummary:
        return self.merge(other)

    @property
    def seen(self) -> int:
        """Values in `counts`."""
        return int(self.counts.sum())

    def merge(self, other: TensorSummary) -> TensorSummary:
        """Returns the summary of both together.

        Order and grouping do not matter, but for the last bits of the float64 sums `signal` and `noise`. A
        format that only one side measured is dropped: its noise would not belong to the common signal.
        """
        return TensorSummary(
            counts=self.counts + other.counts,
            amax=max(self.amax, other.amax),
            elements=self.elements + other.elements,
            zeros=self.zeros + other.zeros,
            nonfinite=self.nonfinite + other.nonfinite,
            signal=self.signal + other.signal,
            noise={name: self.noise[name] + other.noise[name] for name in self.noise if name in other.noise},
            observations=self.observations + other.observations,
        )

    def sqnr_db(self, fmt: Format | str) -> float | None:
        """Returns the signal to quantisation noise ratio in decibels.

        Infinity when the format holds every value exactly; None when it was not measured or every value is
        zero.
        """
        noise = self.noise.get(get_format(fmt).name)
        if noise is None or self.signal == 0:
            return None
        return 10 * math.log10(self.signal / noise) if noise else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as plain JSON values, from which `from_dict` restores it exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "counts": self.counts.tolist(), "noise": dict(self.noise)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorSummary:
        """Restores what `to_dict` returned.

        Raises:
          BadInputError: A field is missing, unknown or of the wrong kind.
        """
        expected = {field.name for field in fields(cls)}
        if set(data) != expected:
            raise BadInputError(
                f"got a tensor summary with {sorted(data)}; allowed: exactly {sorted(expected)}. "
                "Record it again with this version."
            )
        try:
            return cls(
                counts=np.array(data["counts"]),
                amax=float(data["amax"]),
                elements=int(data["elements"]),
                zeros=int(data["zeros"]),
                nonfinite=int(data["nonfinite"]),
                signal=float(data["signal"]),
                noise={str(name): float(value) for name, value in data["noise"].items()},
                observations=int(data["observations"]),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise BadInputError(f"got a tensor summary that cannot be read: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""How far values are from what they should be."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["cosine", "sqnr_db"]


def sqnr_db(true: Tensor, seen: Tensor) -> float | None:
    """Returns the signal-to-noise ratio of `seen` in decibels: `inf` for equal values, `-inf` for non-finite ones.

    None where `true` is all zero: there is no signal.
    """
    exact = true.double()
    signal = float(exact.square().sum())
    if not signal or not math.isfinite(signal):
        return None
    noise = float((seen.double() - exact).square().sum())
    if not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(signal / noise) if noise else math.inf


def cosine(true: Tensor, seen: Tensor) -> float | None:
    """Returns the cosine of the angle between the two, or None where one is all zero or not finite."""
    a, b = true.double(), seen.double()
    lengths = float(a.norm() * b.norm())
    if not lengths or not math.isfinite(lengths):
        return None
    return float(torch.dot(a.reshape(-1), b.reshape(-1))) / lengths

# SPDX-License-Identifier: Apache-2.0
"""How much of a training step's time goes into matrix products and convolutions: what a matrix unit can speed up."""

from __future__ import annotations

import warnings

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["MatrixShareMeter"]

#: Parts of the names of operators (or CUDA kernels' operators) that a matrix unit executes.
_MATRIX_NAMES = ("mm", "conv", "attention", "linear", "lstm", "gru", "rnn", "matmul", "einsum", "dot")


class MatrixShareMeter:
    """Profiles from `start` to `stop`; then `share` is the part of operator time spent in matrix operators."""

    def __init__(self) -> None:
        self.share: float | None = None
        self._profile: profile | None = None

    def start(self) -> None:
        """Begins to time operators."""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._profile.__enter__()

    def stop(self) -> None:
        """Ends it; without a `start` it does nothing."""
        if self._profile is None:
            return
        finished, self._profile = self._profile, None
        finished.__exit__(None, None, None)
        total = matrix = 0.0
        for row in finished.key_averages():
            seconds = row.self_device_time_total or row.self_cpu_time_total
            if not row.key.startswith("aten::") and "mkldnn" not in row.key:
                continue
            total += seconds
            if any(part in row.key for part in _MATRIX_NAMES):
                matrix += seconds
        self.share = matrix / total if total else None

# SPDX-License-Identifier: Apache-2.0
"""How much of a training step's time goes into matrix products and convolutions: what a matrix unit can speed up."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from floatwise.tap.patches import Patches

__all__ = ["MatrixShareMeter"]

#: Parts of the names of operators (or CUDA kernels' operators) that a matrix unit executes.
_MATRIX_NAMES = ("mm", "conv", "attention", "linear", "lstm", "gru", "rnn", "matmul", "einsum", "dot")


class MatrixShareMeter:
    """Profiles from `start` to `stop`; then `share` is the part of operator time spent in matrix operators.

    There is one profiler in a thread: a script that profiles itself has it.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._profile: profile | None = None
        self._starts = False
        self._is_the_scripts = False

    def install(self, patches: Patches) -> None:
        """Gives way to the script's own profiler, whenever it makes one, until the patches are undone."""

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def init(profiler: Any, *args: Any, **kwargs: Any) -> None:
                if not self._starts:
                    self._is_the_scripts = True
                    self._finish()
                original(profiler, *args, **kwargs)

            return init

        patches.replace(torch.autograd.profiler.profile, "__init__", make)

    def start(self) -> None:
        """Begins to time operators."""
        if self._is_the_scripts:
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._starts = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._profile.__enter__()
        self._starts = False

    def stop(self) -> None:
        """Ends it; without a `start` it does nothing."""
        finished = self._finish()
        if finished is None:
            return
        total = matrix = 0.0
        for row in finished.key_averages():
            seconds = row.self_device_time_total or row.self_cpu_time_total
            if not row.key.startswith("aten::") and "mkldnn" not in row.key:
                continue
            total += seconds
            if any(part in row.key for part in _MATRIX_NAMES):
                matrix += seconds
        self.share = matrix / total if total else None

    def _finish(self) -> profile | None:
        finished, self._profile = self._profile, None
        if finished is not None:
            finished.__exit__(None, None, None)
        return finished

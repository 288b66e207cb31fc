# SPDX-License-Identifier: Apache-2.0
"""The peak of tensor memory during a training iteration, on CUDA from the allocator, on a CPU from the profiler."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["PeakMemoryMeter"]


class PeakMemoryMeter:
    """Measures one whole iteration: call `begin` an iteration earlier, `mark` at its start and `end` at its end.

    The profiler reports the release of a block only when it saw its allocation; an iteration's blocks are released
    in the next one at the latest, so a profile over two iterations sees all that matters in the second. What lives
    on (weights, optimizer states, gradients, data) is counted once, at `mark`.
    """

    def __init__(self) -> None:
        self.peak_bytes: int | None = None
        self._profile: profile | None = None
        self._live = 0

    def begin(self) -> None:
        """Starts to watch allocations, one iteration before the one that counts."""
        if not torch.cuda.is_available():
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._profile.__enter__()

    def mark(self) -> None:
        """The iteration that counts begins."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return
        self._live = _live_bytes()
        with torch.profiler.record_function(_MARK):
            pass

    def end(self) -> None:
        """The iteration is over; `peak_bytes` is set."""
        if torch.cuda.is_available():
            self.peak_bytes = torch.cuda.max_memory_allocated()
            return
        finished, self._profile = self._profile, None
        if finished is None:
            return
        finished.__exit__(None, None, None)
        results: Any = finished.profiler.kineto_results  # type: ignore[union-attr]
        events = [(e.start_ns(), e.name(), e.nbytes()) for e in results.events()]
        started = next(time for time, name, _ in events if name == _MARK)
        now = peak = 0
        for _, _, size in sorted(e for e in events if e[1] == "[memory]" and e[0] >= started):
            now += size
            peak = max(peak, now)
        self.peak_bytes = self._live + peak


_MARK = "floatwise: the measured iteration begins"


def _live_bytes() -> int:
    storages: dict[int, int] = {}
    for tensor in _live_tensors():
        for part in _parts(tensor):
            storage = part.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yields the CPU tensors that hold the elements: a DTensor or a quantized state has no storage of its own."""
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        names, _ = wrapper.__tensor_flatten__()
        for part in (getattr(wrapper, name) for name in names):
            if isinstance(part, Tensor):  # a DTensor names its mesh as well
                yield from _parts(part)
    elif tensor.device.type == "cpu" and tensor.layout is torch.strided and not isinstance(tensor, FakeTensor):
        yield tensor


def _live_tensors() -> Iterator[Tensor]:
    for candidate in gc.get_objects():
        if issubclass(type(candidate), Tensor):
            yield candidate
            grad = candidate.grad if candidate.is_leaf else None
            if grad is not None:
                yield grad

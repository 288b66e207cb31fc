# SPDX-License-Identifier: Apache-2.0
"""Kernels that stand in PyTorch's dispatcher for as long as anyone holds them there.

Registrations are process-wide, so they are counted: the first holder makes them, the last one undoes them. No other
thread should compute while either happens.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from types import TracebackType
from typing import Literal

import torch
from typing_extensions import Self

__all__ = ["HeldKernels", "KernelHold"]

# One for all: the dispatcher is shared.
_LOCK = threading.Lock()
# What is in the dispatcher, each kind a power of two.
_PRESENT: set[int] = set()
# A device type of PyTorch's that it has no backend for any more, and a dtype for each sum of kinds; see `_mark`.
_MARK = "ipu"
_MARKS = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)


class HeldKernels:
    """One set of kernels, and how often each of its parts is held.

    Args:
      register: Puts the kernels into an empty library. It also gets the parts that are held, a collection that changes
        while the kernels are in place.
      kind: A power of two of its own for each set, by which torch.compile tells what a graph was traced under.
    """

    def __init__(
        self, register: Callable[[torch.library.Library, Collection[Hashable]], None], kind: Literal[1, 2, 4]
    ) -> None:
        self._register, self._kind = register, kind
        self._holders: Counter[Hashable] = Counter()
        self._library: torch.library.Library | None = None

    def hold(self, parts: Collection[Hashable]) -> None:
        """Adds a holder of these parts."""
        with _LOCK:
            if self._library is None:
                self._library = self._registered()
                _PRESENT.add(self._kind)
            self._holders.update(parts)
            _mark()

    def release(self, parts: Collection[Hashable]) -> None:
        """Takes one away."""
        with _LOCK:
            self._holders -= Counter(parts)  # in place; drops a part that nobody holds any more
            if not self._holders and self._library is not None:
                self._library._destroy()
                self._library = None
                _PRESENT.discard(self._kind)
            _mark()

    def _registered(self) -> torch.library.Library:
        library = torch.library.Library("aten", "IMPL")
        try:
            self._register(library, self._holders)
        except BaseException:
            library._destroy()
            raise
        return library


class KernelHold:
    """Keeps kernels in place until `close()`; also a context manager.

    Args:
      kernels: The kernels.
      parts: Which parts of them; by default they are one.

    Attributes:
      active: True until `close()`.
    """

    def __init__(self, kernels: HeldKernels, parts: Iterable[Hashable] = ("all",)) -> None:
        self._kernels, self._parts = kernels, tuple(parts)
        kernels.hold(self._parts)
        self.active = True

    def close(self) -> None:
        """Gives up this hold; the last one to do so removes the kernels. Closing twice is harmless."""
        if self.active:
            self.active = False
            self._kernels.release(self._parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _mark() -> None:
    """Tells torch.compile by which rules the operators of this thread's autocast go.

    Its guards and its caches on disk know the state of autocast for each device type and nothing of our kernels: a
    graph compiled with them would also serve a run without. Autocast for a device type that no tensor here can have
    changes nothing else, and whether it is on and its dtype are part of both keys.
    """
    if torch.amp.is_autocast_available(_MARK):
        torch.set_autocast_enabled(_MARK, bool(_PRESENT))
        torch.set_autocast_dtype(_MARK, _MARKS[sum(_PRESENT)])

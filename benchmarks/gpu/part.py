# SPDX-License-Identifier: Apache-2.0
"""What a part of the benchmark is given: the machine, how large to measure, how long, and where results go."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

__all__ = ["Part", "Size"]

Size = Literal["full", "tiny"]


class Part:
    """One part at work.

    Args:
      device: `cuda`, or `cpu` to prove the code where there is none.
      size: `full`, or `tiny` for models of a few thousand weights.
      seconds: How long it may take.
      emit: Takes each result at once, so that a part that is stopped keeps what it has.

    Attributes:
      device: As given.
      size: As given.
    """

    def __init__(
        self, device: Literal["cuda", "cpu"], size: Size, seconds: float, emit: Callable[[dict[str, Any]], None]
    ) -> None:
        self.device = device
        self.size = size
        self._deadline = time.monotonic() + seconds
        self._emit = emit

    @property
    def is_tiny(self) -> bool:
        """Whether models are tiny."""
        return self.size == "tiny"

    def row(self, text: str, **figures: Any) -> None:
        """Gives figures, and the line of the table that shows them."""
        self._emit({"event": "row", "value": {"text": text, **_for_json(figures)}})

    def check(self, what: str, passed: bool, detail: str) -> None:
        """Gives something that must hold, and the figures that say whether it does."""
        self._emit({"event": "check", "value": {"what": what, "passed": bool(passed), "detail": detail}})

    def left_out(self, what: str, why: str) -> None:
        """Notes what was not measured."""
        self._emit({"event": "left_out", "value": {"what": what, "why": why}})

    def has_time_for(self, what: str, seconds: float) -> bool:
        """Returns whether so many seconds are left; notes as left out what there is no time for."""
        left = self._deadline - time.monotonic()
        if left >= seconds:
            return True
        self.left_out(what, f"no time: takes about {seconds:.0f} s, {max(left, 0):.0f} s are left of this part's share")
        return False

    @contextmanager
    def attempting(self, what: str) -> Iterator[None]:
        """Makes an error within the block a failed check, so that the rest of the part is measured all the same."""
        try:
            yield
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            first_line = str(error).strip().partition("\n")[0]
            self.check(what, False, f"{type(error).__name__}: {first_line}")

    @property
    def seconds_left(self) -> float:
        """Seconds until this part is to end."""
        return max(self._deadline - time.monotonic(), 0.0)


def _for_json(value: Any) -> Any:
    """Returns a value whose infinities and NaNs, for which JSON has no words, are text."""
    if isinstance(value, dict):
        return {key: _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

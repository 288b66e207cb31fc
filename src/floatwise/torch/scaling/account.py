# SPDX-License-Identifier: Apache-2.0
"""An account of skipped steps and of the scale's changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from floatwise.torch.scaling.log import Update

__all__ = ["ScaleChange", "SkipAccount"]

# Entries of the history. Chosen: a healthy month has a few dozen, and 1,024 of them take 0.2 MB.
_LONGEST_HISTORY = 1024

_COUNTS = ("updates", "skipped_steps", "consecutive_skips")


class ScaleChange(NamedTuple):
    """An update that changed the scale or followed a skipped step.

    Attributes:
      update: Its number; the first is 1. A change without a step (by hand, or inside a step with a closure) has that
        of the update to come.
      before: The scale until then.
      after: The scale from then on.
      skipped: True when a step was skipped.
    """

    update: int
    before: float
    after: float
    skipped: bool


class SkipAccount:
    """Counts and remembers updates.

    Attributes:
      updates: How many there were.
      skipped_steps: How many of them followed a skipped step.
      consecutive_skips: How many of the last ones in a row did.
      history: The last 1,024 that changed the scale or followed a skipped step.
      loss_was_bad: Whether the loss of the last skipped step was not finite itself.
    """

    def __init__(self) -> None:
        self.updates = self.skipped_steps = self.consecutive_skips = 0
        self.history: deque[ScaleChange] = deque(maxlen=_LONGEST_HISTORY)
        self.loss_was_bad = False

    def note(self, update: Update) -> None:
        """Notes an update."""
        if update.counted:
            self.updates += 1
            self.skipped_steps += update.skipped
            self.consecutive_skips = self.consecutive_skips + 1 if update.skipped else 0
        if update.skipped and update.counted:
            self.loss_was_bad = update.loss_was_bad
        if update.before != update.after or (update.skipped and update.counted):
            number = self.updates + (not update.counted)
            self.history.append(ScaleChange(number, update.before, update.after, update.skipped and update.counted))

    def state_dict(self) -> dict[str, int]:
        """Returns the counts."""
        return {name: getattr(self, name) for name in _COUNTS}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on from counts; those that are missing are 0. The history begins anew."""
        self.__init__()  # type: ignore[misc]
        for name in _COUNTS:
            setattr(self, name, state.get(name, 0))

# SPDX-License-Identifier: Apache-2.0
"""Patience with overflows: how many updates in a row must overflow before the scale backs off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["Hysteresis"]


class Hysteresis:
    """Counts down from `updates` while updates overflow, on the device; one without overflow starts anew.

    When the count has run out, every further overflow in the row backs off: as apex's `update_scale_hysteresis`.

    Args:
      updates: 1 backs off at once.
    """

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self._left: float | Tensor = float(updates)

    def hold(self, scale: Tensor, before: Tensor, found: Tensor) -> None:
        """Notes an update and sets the scale to `before` if it must not back off yet.

        Args:
          scale: The scale the update has arrived at.
          before: The scale until then.
          found: Not 0 when a gradient was not finite.
        """
        if self.updates > 1:
            left = torch.where(found > 0, torch.as_tensor(self._left, device=scale.device) - 1, float(self.updates))
            scale.copy_(torch.where((found > 0) & (left > 0), before, scale))
            self._left = left

    def state_dict(self) -> dict[str, int]:
        """Returns its state, under the keys of NeMo's `GradScaler`. Waits for the device."""
        return {"hysteresis": self.updates, "_hysteresis_tracker": int(self._left)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; without one from the start."""
        self.updates = state.get("hysteresis", self.updates)
        self._left = float(state.get("_hysteresis_tracker", self.updates))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_left": float(self._left)}

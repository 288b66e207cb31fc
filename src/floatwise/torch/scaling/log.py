# SPDX-License-Identifier: Apache-2.0
"""Updates of a loss scale, kept on the device until the host needs to know them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ScaleLog", "Update"]

# Updates kept on the device at most; reading them waits for it once. Chosen: one wait in as many steps is not
# measurable.
_MOST_PENDING = 64


class Update(NamedTuple):
    """An update of the scale.

    Attributes:
      before: The scale until then.
      after: The scale from then on.
      skipped: True when a step was skipped.
      largest: The largest magnitude of a scaled gradient; 0 when it was not measured, anything when `skipped`.
      loss_was_bad: True when the loss was not finite.
      counted: False for a move of the scale without a step.
    """

    before: float
    after: float
    skipped: bool
    largest: float = 0.0
    loss_was_bad: bool = False
    counted: bool = True


class ScaleLog:
    """Updates that the host has not read yet."""

    def __init__(self) -> None:
        self._pending: list[Tensor] = []
        self._counted: list[bool] = []

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether it is time to read."""
        return len(self) >= _MOST_PENDING

    def add(
        self, before: Tensor, after: Tensor, found: Tensor, largest: Tensor, loss_bad: Tensor, counted: bool
    ) -> None:
        """Notes an update: single float32 numbers on one device, which may change afterwards."""
        self._pending.append(torch.stack([before, after, found, largest, loss_bad]))
        self._counted.append(counted)

    def take(self) -> list[Update]:
        """Returns the updates since the last call. Waits for the device."""
        if not self._pending:
            return []
        rows = torch.stack(self._pending).tolist()
        updates = [
            Update(before, after, found > 0, largest, loss_bad > 0, counted)
            for (before, after, found, largest, loss_bad), counted in zip(rows, self._counted, strict=True)
        ]
        self.__init__()  # type: ignore[misc]
        return updates

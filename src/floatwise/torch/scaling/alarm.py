# SPDX-License-Identifier: Apache-2.0
"""When skipped steps are no longer a matter of the loss scale: a warning at the floor, an error after many in a row."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from floatwise.errors import NonFiniteGradientsError
from floatwise.torch.scaling.account import SkipAccount
from floatwise.torch.scaling.report import non_finite_gradients, skip_report

__all__ = ["SkipAlarm"]


class SkipAlarm:
    """Tells that training does not go on, and which parameters are the cause.

    Args:
      after: How many skipped steps in a row raise an error; None for no error and no warning.
    """

    def __init__(self, after: int | None) -> None:
        self.after = after
        self._models: list[weakref.ref[nn.Module]] = []
        self.reset()

    def reset(self) -> None:
        """Forgets what was told already: another account begins."""
        self._raised_at = 0
        self._warned = False

    def watch(self, models: Iterable[nn.Module]) -> None:
        """Takes names from these models, too."""
        self._models += map(weakref.ref, models)

    def is_due(self, pending: int, known: bool) -> bool:
        """Returns whether to look now.

        Args:
          pending: Updates that the host has not read.
          known: True when the host has seen a skip, or need not wait to see one.
        """
        return known or (self.after is not None and pending >= self.after)

    def look(self, account: SkipAccount, optimizers: Iterable[Optimizer], lowest: float | None) -> None:
        """Warns of the first skip at the floor and raises after too many in a row.

        Args:
          account: The updates, up to the last.
          optimizers: Those of the last update, whose gradients are still there.
          lowest: The floor; None when the scale is static.

        Raises:
          NonFiniteGradientsError: As described.
        """
        skips = account.consecutive_skips
        if self.after is None or skips == 0:
            return
        scale = account.history[-1].before
        can_fall = lowest is not None and scale > lowest
        raises = min(skips, account.updates - self._raised_at) >= self.after
        if not raises and (can_fall or lowest is None or self._warned):
            return
        models = [model for reference in self._models if (model := reference()) is not None]
        gradients, total = non_finite_gradients(optimizers, models)
        text = skip_report(
            gradients, total, skips=skips, scale=scale, can_fall=can_fall, loss_was_bad=account.loss_was_bad
        )
        if raises:
            self._raised_at = account.updates
            raise NonFiniteGradientsError(text, gradients, skips)
        self._warned = True
        warnings.warn(text, stacklevel=4)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_models": []}

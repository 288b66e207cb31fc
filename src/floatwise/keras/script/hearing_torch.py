# SPDX-License-Identifier: Apache-2.0
"""The torch backend's losses and steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from floatwise.tap.patches import Patches

__all__ = ["HearingTorch"]


class HearingTorch:
    """Replaces `backward`; see `floatwise.keras.script.iterations`.

    Args:
      patches: Undo it.
      iterations: Is told.
    """

    def __init__(self, patches: Patches, iterations: Any) -> None:
        from keras.src.backend.torch.trainer import TorchTrainer

        self.trainer = TorchTrainer
        self._iterations = iterations
        self._is_in_backward = False
        patches.replace(torch.Tensor, "backward", self._backward)
        patches.replace(torch.autograd, "backward", self._backward)
        hook = register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: iterations.stepped_by(("optimizer", id(optimizer)), optimizer)
        )
        patches.on_undo(hook.remove)

    def lost(self, loss: Any) -> None:
        """Keeps a loss for the step to come."""
        self._iterations.lost(self.number(loss))

    def applied(self, key: Hashable, _: Any) -> None:
        """An optimizer's `apply` has returned."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._iterations.stepped(key)

    def total(self, losses: list[Any]) -> Any:
        """Returns the sum of the losses, None for none."""
        return math.fsum(self.number(loss) for loss in losses) if losses else None

    def split(self, returned: Any) -> tuple[Any, Any]:
        """Returns a train function's logs and the rest."""
        return returned, None

    def joined(self, logs: Any, rest: Any) -> Any:
        """Returns what `split` has split."""
        return logs

    def wait(self, returned: Any) -> None:
        """Waits for the device."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def number(self, loss: Any) -> float:
        """Returns a loss as a number."""
        return float(loss.detach().sum()) if isinstance(loss, torch.Tensor) else float(loss)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_in_backward:  # `Tensor.backward` calls `torch.autograd.backward`
                return original(roots, *args, **kwargs)
            self._is_in_backward = True
            try:
                result = original(roots, *args, **kwargs)
            finally:
                self._is_in_backward = False
            for root in (roots,) if isinstance(roots, torch.Tensor) else roots:
                unscaled = self._iterations.unscaled(root)
                self._iterations.heard((root if unscaled is None else unscaled).detach())
            return result

        return backward

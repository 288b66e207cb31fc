# SPDX-License-Identifier: Apache-2.0
"""Tensors of Keras' torch backend looked at: directly, and by hooks on their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from floatwise.probe.keras_watching import Hear

__all__ = ["TorchWatcher"]

Look = tuple[NDArray[np.float32], int, float]


class TorchWatcher:
    """See `floatwise.probe.keras_watching.Watcher`."""

    def __init__(self, sampled: int | None) -> None:
        self._sampled = sampled

    def is_training(self) -> bool:
        """Returns whether gradients will be taken of what is computed now."""
        return torch.is_grad_enabled()

    def is_floating(self, value: Any) -> bool:
        """Returns whether this is a dense tensor of floating point numbers that can be looked at."""
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.layout is torch.strided
            and value.device.type != "meta"
        )

    def look(self, tensor: torch.Tensor, hear: Hear) -> None:
        """Looks at a tensor."""
        hear(*self._look(tensor))

    def look_at_all(self, tensors: Mapping[str, torch.Tensor], hear: Callable[[Mapping[str, Look]], None]) -> None:
        """Looks at several tensors at one time."""
        hear({name: self._look(tensor) for name, tensor in tensors.items()})

    def pass_through(self, tensor: torch.Tensor, hear: Hear, hear_gradient: Hear) -> torch.Tensor:
        """Looks at a tensor and its gradient; returns the tensor itself."""
        hear(*self._look(tensor))
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: hear_gradient(*self._look(gradient)))
        return tensor

    def _look(self, tensor: torch.Tensor) -> Look:
        with torch.no_grad():
            flat = tensor.detach().reshape(-1)
            elements = flat.numel()
            if not elements:
                return np.zeros(0, np.float32), 0, 0.0
            low, high = torch.aminmax(flat)
            amax = max(-float(low), float(high))
            if not np.isfinite(amax):
                amax = float(flat[flat.isfinite()].abs().max()) if bool(flat.isfinite().any()) else 0.0
            most = self._sampled or elements
            stride = (elements // most) | 1 if elements > most else 1
            return flat[::stride].to("cpu", torch.float32).numpy(), elements, amax

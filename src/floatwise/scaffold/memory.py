# SPDX-License-Identifier: Apache-2.0
"""The memory of a model's state on each device, by closed form; activations come on top."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StateMemory", "state_memory"]

_GIB = 2**30
# Bytes per weight. PyTorch, Keras and Flax keep float32 weights and gradients and Adam's two float32 averages.
_FLOAT32_STATE = (4, 4, 8)
# DeepSpeed keeps 16-bit weights and gradients, and with Adam's averages the float32 weights: arXiv 1910.02054, 3.1.
_ZERO_STATE = (2, 2, 12)
#: Which of weights, gradients and optimizer states are divided among the devices.
_DIVIDED = {
    "single": (False, False, False),
    "ddp": (False, False, False),
    "zero1": (False, False, True),
    "zero2": (False, True, True),
    "zero3": (True, True, True),
    "fsdp2": (True, True, True),
}


@dataclass(frozen=True)
class StateMemory:
    """Bytes on each device.

    Attributes:
      weights: Of the weights that forward and backward use.
      gradients: Of their gradients.
      optimizer: Of Adam's averages, and of float32 weights that the optimizer keeps for itself.
    """

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total_gib(self) -> float:
        """All of it in GiB."""
        return self.total / _GIB


def state_memory(parameters: int, parallel: str, devices: int, *, has_deepspeed_copies: bool = False) -> StateMemory:
    """Returns the memory of weights, gradients and Adam's states on each device.

    Args:
      parameters: Number of weights.
      parallel: A key of `framework.PARALLELS`.
      devices: How many devices share what is divided.
      has_deepspeed_copies: Whether the state is DeepSpeed's 2 + 2 + 12 bytes per weight, not 4 + 4 + 8.
    """
    per_weight = _ZERO_STATE if has_deepspeed_copies else _FLOAT32_STATE
    shares = [
        -(-parameters * size // devices) if is_divided else parameters * size
        for size, is_divided in zip(per_weight, _DIVIDED[parallel], strict=True)
    ]
    return StateMemory(*shares)

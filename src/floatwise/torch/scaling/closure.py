# SPDX-License-Identifier: Apache-2.0
"""Optimizers that evaluate the loss again while they step (LBFGS, SAM) under a loss scale.

Such an optimizer calls a closure and uses the gradients it left, all within its step. So they are unscaled when the
closure returns. When one is not finite, the scale backs off and the closure is evaluated again: a step that has begun
cannot be skipped. Only when no smaller scale is left the step is given up: weights and optimizer are put back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from floatwise.torch.masters import float32_value, set_float32_value, stored_of

__all__ = ["stepped_with"]


class _GivenUp(Exception):
    """Leaves the optimizer's step."""


def stepped_with(
    optimizer: Optimizer, closure: Callable[[], Any], unscale: Callable[[], bool], back_off: Callable[[], bool]
) -> tuple[bool, Any]:
    """Steps an optimizer with a closure.

    Args:
      optimizer: The optimizer.
      closure: Leaves scaled gradients.
      unscale: Unscales them and returns whether all are finite.
      back_off: Lowers the scale and returns whether that was possible.

    Returns:
      Whether it stepped, and what `optimizer.step` returned.
    """

    def evaluate() -> Any:
        while True:
            with torch.enable_grad():
                loss = closure()
            if unscale():
                return loss
            if not back_off():
                raise _GivenUp

    weights = [(p, _exact(p)) for group in optimizer.param_groups for p in group["params"]]
    state = {key: copy.deepcopy(value) for key, value in optimizer.state.items()}
    try:
        return True, optimizer.step(evaluate)
    except BaseException as error:
        for parameter, value in weights:
            set_float32_value(parameter, value)
        optimizer.state.clear()
        optimizer.state.update(state)
        if not isinstance(error, _GivenUp):
            raise
        return False, None


def _exact(parameter: Tensor) -> Tensor:
    return parameter.detach().clone() if stored_of(parameter) is None else float32_value(parameter)

# SPDX-License-Identifier: Apache-2.0
"""What tests of grad scalers share: the scalers that must behave alike, small models, and loops to compare."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from floatwise.torch import LossScaler

Batch = tuple[Tensor, Tensor]
#: Does something to a model between backward pass and step.
Spoil = Callable[[nn.Sequential], None]
#: One iteration of a training loop; a scaler that it returns replaces the one it was given.
Iteration = Callable[[GradScaler, nn.Sequential, Optimizer, Batch, Spoil], GradScaler | None]

SCALERS: dict[str, Callable[..., GradScaler]] = {
    "stock": partial(GradScaler, "cpu"),
    "headroom": partial(LossScaler, "cpu"),
    "fixed": partial(LossScaler, "cpu", growth="fixed"),
}

#: Constructors of optimizers and their settings. A learning rate of 1 shows every wrong factor.
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 1.0}),
    "SGD foreach": (torch.optim.SGD, {"lr": 1.0, "foreach": True}),
    "SGD fused": (torch.optim.SGD, {"lr": 1.0, "fused": True, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-3}),
    "Adam fused": (torch.optim.Adam, {"lr": 1e-3, "fused": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "AdamW foreach": (torch.optim.AdamW, {"lr": 1e-3, "foreach": True}),
    "AdamW fused": (torch.optim.AdamW, {"lr": 1e-3, "fused": True}),
    "AdamW fused, amsgrad": (torch.optim.AdamW, {"lr": 1e-3, "fused": True, "amsgrad": True}),
    "Adagrad fused": (torch.optim.Adagrad, {"lr": 1e-2, "fused": True}),
}
FUSED = [name for name in OPTIMIZERS if "fused" in name]

#: The iteration whose gradients are spoilt, of four.
SKIPPED = 2


def model() -> nn.Sequential:
    """Two linear layers, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def optimizer_of(net: nn.Module, kind: str = "SGD", **changes: Any) -> Optimizer:
    make, settings = OPTIMIZERS[kind]
    return make(net.parameters(), **{**settings, **changes})


def batches() -> list[Batch]:
    return [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(4)]


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(net(batch[0]), batch[1])


def put_inf(net: nn.Sequential) -> None:
    """Makes the gradient of the second layer infinite."""
    gradient = net[1].weight.grad
    assert isinstance(gradient, Tensor)
    gradient.fill_(math.inf)


def leave(net: nn.Sequential) -> None:
    """Spoils nothing."""


def compare(
    iteration: Iteration, scaler: GradScaler, kind: str = "SGD", skips: bool = True, atol: float = 1e-7
) -> GradScaler:
    """Trains with a scaler and, for control, without; asserts equal weights, gradients and optimizer states.

    Returns:
      The scaler, after four updates, the third of which followed an overflow if `skips`.
    """
    control, net = model(), model()
    optimizers = optimizer_of(control, kind), optimizer_of(net, kind)
    for number, batch in enumerate(batches()):
        spoilt = skips and number == SKIPPED
        if not spoilt:
            iteration(GradScaler("cpu", enabled=False), control, optimizers[0], batch, leave)
        scaler = iteration(scaler, net, optimizers[1], batch, put_inf if spoilt else leave) or scaler
    for expected, parameter in zip(control.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, atol=atol, rtol=1e-5)
        torch.testing.assert_close(parameter.grad, expected.grad, atol=atol, rtol=1e-5)
        torch.testing.assert_close(optimizers[1].state[parameter], optimizers[0].state[expected], atol=atol, rtol=1e-5)
    return scaler

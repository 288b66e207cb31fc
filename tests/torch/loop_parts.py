# SPDX-License-Identifier: Apache-2.0
"""A model, batches and optimizers for tests of training loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from floatwise.plan import LossScale, Plan, recipe
from floatwise.torch import Precision, prepare

Batch = tuple[Tensor, Tensor]

#: What a loop written by hand gives to `torch.autocast` for the same training; None: nothing.
AUTOCAST = {"fp32": None, "bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def model() -> nn.Sequential:
    """Linear layers and GELU alone: on these, CPU autocast and CUDA autocast agree."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))


def batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 32, generator=generator), torch.randint(0, 32, (8,), generator=generator)) for _ in range(count)
    ]


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    output = net(batch[0])
    return functional.mse_loss(output, batch[0]) + functional.cross_entropy(output, batch[1])


def overflowing(net: nn.Module) -> Tensor:
    """A loss whose gradient is infinite in every element of the first weight."""
    return next(net.parameters()).float().sum() * math.inf


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
    "AdamW fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True),
}


def sgd(net: nn.Module, lr: float = 0.1) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=lr)


def prepared(net: nn.Module, optimizer: Optimizer | list[Optimizer], plan: Plan | str) -> closing[Precision]:
    """`prepare` as a context, closed at its end."""
    return closing(prepare(net, optimizer, plan))


def scaled(initial_scale: float = 65536.0, name: str = "fp16-mixed") -> Plan:
    """A float16 plan with this first loss scale."""
    return recipe(name, loss_scale=LossScale(initial_scale=initial_scale))


def train_step(precision: Precision, net: nn.Module, batch: Batch) -> bool:
    """Trains on one batch; returns whether the weights moved."""
    with precision.forward():
        loss = loss_of(net, batch)
    precision.backward(loss)
    info = precision.step()
    precision.zero_grad()
    return info.stepped


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

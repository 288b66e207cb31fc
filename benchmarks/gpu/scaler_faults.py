# SPDX-License-Identifier: Apache-2.0
"""The faults of torch.amp.GradScaler on a device, in short: what it does, and what LossScaler does in its place.

`tests/torch/test_grad_scaler_faults.py` has them at length. Two of them, ranks that part, need several processes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from floatwise.torch import LossScaler

__all__ = ["Fault", "faults"]

_OVERFLOWS = 166  # from 2**16, halved each time, to zero in float32


@dataclass(frozen=True)
class Fault:
    """A fault and its cure.

    Attributes:
      name: What is wrong.
      stock: What GradScaler was seen to do.
      stock_has_it: Whether that is the fault; False where this torch has repaired it.
      ours: What LossScaler was seen to do.
      cured: Whether that is right.
    """

    name: str
    stock: str
    stock_has_it: bool
    ours: str
    cured: bool


Make = Callable[..., GradScaler]


def faults(device: str) -> Iterator[Fault]:
    """Yields each fault as it is on this device and torch.

    Args:
      device: `cuda` or `cpu`.
    """
    yield _no_floor(device)
    yield _fused(device)
    yield _no_count(device)
    yield _closure(device)


def _stock(device: str, **settings: float) -> GradScaler:
    return GradScaler(device, **settings)  # type: ignore[arg-type]


def _weight(device: str) -> nn.Parameter:
    return nn.Parameter(torch.ones(3, device=device))


def _take(scaler: GradScaler, weight: nn.Parameter, optimizer: Optimizer, factor: float) -> None:
    optimizer.zero_grad()
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def _no_floor(device: str) -> Fault:
    seen = []
    for scaler in (_stock(device), LossScaler(device, alarm_after=None)):
        weight = _weight(device)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for factor in [math.inf] * _OVERFLOWS + [1.0]:
            _take(scaler, weight, optimizer, factor)
        seen.append((scaler.get_scale(), float(weight.detach()[0])))
    (scale, stock), (own_scale, own) = seen
    return Fault(
        f"no floor: after {_OVERFLOWS} overflows and a good step",
        f"scale {scale:g}, weights {stock:g}",
        not math.isfinite(stock),
        f"scale {own_scale:g}, weights {own:g}",
        own_scale == 1.0 and abs(own - 0.9) < 1e-6,
    )


def _fused(device: str) -> Fault:
    seen = []
    for scaler in (_stock(device, init_scale=8.0), LossScaler(device, init_scale=8.0)):
        weight = _weight(device)
        optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
        scaler.scale((weight * torch.tensor([1.0, 2.0, math.inf], device=device)).sum()).backward()
        scaler.step(optimizer)
        assert weight.grad is not None
        seen.append((weight.grad.tolist()[:2], weight.tolist(), getattr(scaler, "last_step", "no word of it")))
    (stock, _, said), (own, weights, own_said) = seen
    return Fault(
        "a fused optimizer skips inside its kernel",
        f"gradients {stock}, {said}",
        stock != [1.0, 2.0],
        f"gradients {own}, {own_said}",
        own == [1.0, 2.0] and weights == [1.0] * 3 and own_said == "skipped",
    )


def _no_count(device: str) -> Fault:
    stock = _stock(device)
    counts = [name for name in dir(stock) if "skip" in name]
    weight, scaler = _weight(device), LossScaler(device, init_scale=1.0, alarm_after=None)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for factor in (1.0, math.inf, math.inf):
            _take(scaler, weight, optimizer, factor)
    own = (scaler.skipped_steps, scaler.consecutive_skips, scaler.last_step)
    return Fault(
        "no count of skipped steps",
        f"attributes with 'skip': {counts or 'none'}",
        not counts,
        f"{own[0]} skipped, {own[1]} in a row, the last was {own[2]}",
        own == (2, 2, "skipped"),
    )


def _closure(device: str) -> Fault:
    seen = []
    for scaler in (_stock(device), LossScaler(device)):
        weight = _weight(device)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler.scale(weight.sum()).backward()
        try:
            scaler.step(optimizer, lambda: 0.0)
            seen.append("takes it")
        except RuntimeError:
            seen.append("refuses it")
    return Fault(
        "a closure by position", f"{seen[0]} unscaled", seen[0] == "takes it", seen[1], seen[1] == "refuses it"
    )

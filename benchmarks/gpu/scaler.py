# SPDX-License-Identifier: Apache-2.0
"""Part 6: LossScaler against torch.amp.GradScaler: the same bits, time, waits for the device, and faults."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.gpu.clock import ratio, take_turns
from benchmarks.gpu.machine import device_row
from benchmarks.gpu.models import model_of
from benchmarks.gpu.part import Part
from benchmarks.gpu.scaler_faults import faults
from benchmarks.gpu.sides import CudaSide, Rehearsal, Side
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from floatwise.torch import LossScaler

__all__ = ["OPTIMIZERS", "TIMED", "Trained", "compare_waits", "counted_waits", "run", "train"]

OPTIMIZERS: Mapping[str, Callable[[Any], Optimizer]] = {
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
}

TIMED = ("AdamW, fused", "AdamW, foreach")

#: Growth after so few steps that overflows come again and again (chosen).
_GROWTH_INTERVAL = 6
#: Healthy steps in which waits are counted. LossScaler reads its log when 25 updates wait, by `alarm_after`.
_COUNTED_STEPS, _READ_EVERY = 60, 25


def run(part: Part) -> None:
    """Compares bits, time, waits, and what happens at the edges."""
    side: Side = CudaSide() if part.device == "cuda" else Rehearsal()
    steps = 40 if part.is_tiny else 200
    for name in OPTIMIZERS:
        with part.attempting(f"same bits, {name}"):
            if part.has_time_for(f"same bits, {name}", 1 if part.is_tiny else 4):
                _same_bits(part, side, name, steps)
    if part.device == "cuda":
        for name in TIMED:
            with part.attempting(f"waits for the device, {name}"):
                compare_waits(part, side, name)
    else:
        part.left_out("waits for the device", "needs CUDA: a CPU has nothing to wait for")
    with part.attempting("faults of GradScaler"):
        _faults(part)
    for name in TIMED:
        with part.attempting(f"time, {name}"):
            if part.has_time_for(f"time of a step, {name}", 1 if part.is_tiny else 6):
                _time(part, side, name)


# -- the same bits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A training: losses, scales, and the weights at its end."""

    losses: list[float]
    scales: list[float]
    weights: list[Tensor]

    def differs_from(self, other: Trained) -> str | None:
        """Returns in what two trainings differ; None when they are the same, bit for bit."""
        for step, pair in enumerate(zip(self.scales, other.scales, strict=True)):
            if pair[0] != pair[1]:
                return f"scales 2**{math.log2(pair[0]):g} and 2**{math.log2(pair[1]):g} in step {step}"
        for step, pair in enumerate(zip(self.losses, other.losses, strict=True)):
            if pair[0] != pair[1] and not (pair[0] != pair[0] and pair[1] != pair[1]):
                return f"losses {pair[0]!r} and {pair[1]!r} in step {step}"
        same = all(torch.equal(a, b) for a, b in zip(self.weights, other.weights, strict=True))
        return None if same else "weights"


class _Net(nn.Module):
    """Linear layers and norms, whose kernels give the same bits every time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(part for _ in range(3) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())), nn.Linear(64, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def train(side: Side, optimizer: Callable[[Any], Optimizer], scaler: GradScaler, steps: int) -> Trained:
    """Trains a small net in float16, always the same.

    Args:
      side: Where.
      optimizer: Makes the optimizer.
      scaler: Scales the loss.
      steps: How many.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = side.model(_Net())
    stepping, generator = optimizer(net.parameters()), torch.Generator().manual_seed(0)
    losses, scales = [], []
    with side.holding():
        for _ in range(steps):
            inputs, targets = torch.randn(32, 64, generator=generator), torch.randn(32, 16, generator=generator)
            inputs, targets = side.place((inputs, targets))
            stepping.zero_grad()
            with side.region(torch.float16):
                loss = F.mse_loss(net(inputs), targets)
            scales.append(scaler.get_scale())
            scaler.scale(loss).backward()
            scaler.step(stepping)
            scaler.update()
            losses.append(loss.item())
    return Trained(losses, scales, [p.detach().clone() for p in net.parameters()])


def _same_bits(part: Part, side: Side, name: str, steps: int) -> None:
    settings: dict[str, Any] = {"init_scale": 2.0**22, "growth_interval": _GROWTH_INTERVAL}
    runs = [
        train(side, OPTIMIZERS[name], scaler, steps)
        for scaler in (
            GradScaler(part.device, **settings),
            GradScaler(part.device, **settings),
            LossScaler(part.device, **settings, growth="fixed", floor=2.0**-126, ceiling=2.0**127, alarm_after=None),
        )
    ]
    overflows = sum(after < before for before, after in zip(runs[0].scales, runs[0].scales[1:], strict=False))
    control, differs = runs[0].differs_from(runs[1]), runs[0].differs_from(runs[2])
    what = f"LossScaler(growth='fixed') and GradScaler, {name}"
    found = differs or f"same losses, scales and weights, {overflows} overflows"
    part.row(
        f"{what:60} {steps} steps: {found}" + (f"; GradScaler twice: {control}" if control else ""),
        what=what,
        steps=steps,
        overflows=overflows,
        differs=differs,
        grad_scaler_twice_differs=control,
    )
    if control is not None:
        part.left_out(f"same bits, {name}", f"GradScaler itself does not give the same bits twice here: {control}")
        return
    part.check(f"same bits, {name}", differs is None and overflows > 0, found)


# -- waits and time ---------------------------------------------------------------------------------------------------


@contextmanager
def counted_waits() -> Iterator[list[int]]:
    """Counts operations that wait for the CUDA device, of which PyTorch warns; the count is there after the block."""
    found = [0]
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found[0] = sum("called a synchronizing CUDA operation" in str(warning.message) for warning in seen)


def _stepping(
    net: nn.Module, optimizer: Optimizer, scaler: GradScaler, loss: Callable[[], Tensor]
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _scalers(device: str) -> dict[str, Callable[[], GradScaler]]:
    settings: dict[str, Any] = {"init_scale": 2.0**8}
    return {
        "GradScaler": partial(GradScaler, device, **settings),
        "fixed": partial(LossScaler, device, **settings, growth="fixed"),
        "headroom": partial(LossScaler, device, **settings),
    }


def compare_waits(part: Part, side: Side, name: str) -> None:
    """Counts the waits of healthy steps under GradScaler and under LossScaler.

    Args:
      part: Takes what is found.
      side: Where to train.
      name: Of the optimizer.
    """
    counts = {}
    for kind, make in _scalers(part.device).items():
        net = side.model(_Net())
        (x,) = side.place((torch.ones(8, 64),))
        step = _stepping(net, OPTIMIZERS[name](net.parameters()), make(), partial(_mean_square, net, x))
        for _ in range(3):
            step()
        with counted_waits() as found:
            for _ in range(_COUNTED_STEPS):
                step()
        counts[kind] = found[0]
    what = f"waits for the device in {_COUNTED_STEPS} steps, {name}"
    text = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    part.row(f"{what:60} {text}", what=what, counts=counts)
    allowed = counts["GradScaler"] + _COUNTED_STEPS // _READ_EVERY + 1
    most = max(counts["fixed"], counts["headroom"])
    part.check(what, most <= allowed, f"{text}; {allowed} allowed: GradScaler's, and one in {_READ_EVERY} updates")


def _mean_square(net: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(net(x), x[:, :16])


def _time(part: Part, side: Side, name: str) -> None:
    model = model_of("text_gpt", part.size)
    batch = side.place(model.batch(0))
    with ExitStack() as stack:
        stack.enter_context(side.holding())
        runs = {}
        for kind, make in _scalers(part.device).items():
            net = side.model(model.made())

            def loss(net: nn.Module = net) -> Tensor:
                with side.region(torch.float16):
                    return model.loss(net, *batch)

            runs[kind] = _stepping(net, OPTIMIZERS[name](net.parameters()), make(), loss)
        times = take_turns(
            runs, part.device, warm_up=5, rounds=3 if part.is_tiny else 60, seconds=2 if part.is_tiny else 5
        )
    for kind in ("fixed", "headroom"):
        found = ratio(times[kind], times["GradScaler"])
        what = f"time of a step with {kind} growth over GradScaler's, {name}"
        part.row(
            f"{what:64} {found.median:.3f} ({found.low:.3f} to {found.high:.3f})",
            what=what,
            ratio=found._asdict(),
            rounds=len(times[kind]),
        )


# -- faults -----------------------------------------------------------------------------------------------------------


def _faults(part: Part) -> None:
    for fault in faults(part.device):
        stock = fault.stock + ("" if fault.stock_has_it else " (repaired in this torch)")
        part.row(
            f"{fault.name}: GradScaler {stock}; LossScaler {fault.ours}",
            what=fault.name,
            stock=fault.stock,
            stock_has_it=fault.stock_has_it,
            ours=fault.ours,
        )
        part.check(f"fault cured, {fault.name}", fault.cured, fault.ours)
    part.left_out("ranks that part: two faults", "they take several processes; tests/torch/distributed has them")
    if part.device == "cuda":
        row, says = device_row(), torch.cuda.is_bf16_supported()
        own = None if row is None else row.has_matrix("bfloat16")
        part.row(
            f"bfloat16 on matrix units: torch.cuda.is_bf16_supported() says {says}, Floatwise's row {own}",
            what="bfloat16 on matrix units",
            stock=says,
            ours=own,
        )

# SPDX-License-Identifier: Apache-2.0
"""Part 7: MasterWeights: bits of float32 updates, bytes per parameter, time of updates and of whole steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from benchmarks.gpu.clock import ratio, take_turns
from benchmarks.gpu.models import Model, model_of
from benchmarks.gpu.part import Part
from benchmarks.gpu.speed import training
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.plan import Weights, recipe
from floatwise.torch import MasterWeights
from floatwise.torch.masters import stored_of

__all__ = ["MODES", "OPTIMIZERS", "SideBySide", "run"]

Mode = Literal["split", "float32", "kahan", "stochastic"]

MODES: tuple[Mode, ...] = ("split", "float32", "kahan", "stochastic")
EXACT = ("split", "float32")

OPTIMIZERS: Mapping[str, Callable[[Any], Optimizer]] = {
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
}

#: Relative distance from float32 weights that is allowed after a few steps. Chosen: Kahan's pairs have 16 bits of
#: mantissa; chance moves a weight by up to bfloat16's epsilon, 2**-7, a step.
_NEAR: Mapping[str, float] = {"kahan": 2.0**-14, "stochastic": 2.0**-6}

#: Bytes that weight and master take by the documentation of `MasterWeights`.
_WEIGHT_BYTES: Mapping[str, int] = {"split": 4, "float32": 6, "kahan": 4, "stochastic": 2}


def run(part: Part) -> None:
    """Compares bits and bytes for every optimizer and mode, then times updates and steps."""
    for name in OPTIMIZERS:
        for mode in MODES:
            what = f"{name}, {mode}"
            with part.attempting(f"masters, {what}"):
                if part.has_time_for(what, 0.3 if part.is_tiny else 1):
                    _updates(part, name, mode)
    with part.attempting("time of updates"):
        if part.has_time_for("time of updates", 1 if part.is_tiny else 10):
            _time_of_updates(part)
    for name in ("text_gpt",) if part.is_tiny else ("text_gpt, large batch", "gpt_100m"):
        with part.attempting(f"time of steps, {name}"):
            if part.has_time_for(f"time of steps, {name}", 1 if part.is_tiny else 10):
                _time_of_steps(part, model_of(name, part.size))


# -- bits and bytes ---------------------------------------------------------------------------------------------------


@dataclass
class SideBySide:
    """Float32 weights, and bfloat16 weights with masters, that are given the same gradients.

    Args:
      make: Makes the optimizer.
      mode: Of the masters.
      device: Of the weights.
      shapes: Of the weights.
    """

    make: Callable[[Any], Optimizer]
    mode: Mode
    device: str
    shapes: Iterable[tuple[int, ...]]

    def __post_init__(self) -> None:
        self._generator = torch.Generator(self.device).manual_seed(0)
        self.wide = [nn.Parameter(self._drawn(shape)) for shape in self.shapes]
        self.low = [nn.Parameter(p.detach().clone()) for p in self.wide]
        self.reference = self.make(self.wide)
        self.optimizer = MasterWeights(self.make(self.low), self.mode, dtype=torch.bfloat16)

    def _drawn(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device=self.device, generator=self._generator)

    def step(self) -> None:
        """Steps both with the same gradients, which bfloat16 can hold."""
        for wide, low in zip(self.wide, self.low, strict=True):
            low.grad = self._drawn(tuple(low.shape)).bfloat16()
            wide.grad = low.grad.float()
        self.reference.step()
        self.optimizer.step()

    def same_bits(self) -> bool:
        """Returns whether the exact values are the float32 weights, bit for bit."""
        pairs = zip(self.low, self.wide, strict=True)
        return all(
            torch.equal(self.optimizer.master(low).view(torch.int32), wide.detach().view(torch.int32))
            for low, wide in pairs
        )

    def distance(self) -> float:
        """Returns the norm of the differences of the exact values over that of the weights."""
        differences = [(self.optimizer.master(a) - b.detach()).norm() for a, b in zip(self.low, self.wide, strict=True)]
        norms = [b.detach().norm() for b in self.wide]
        return float(torch.stack(differences).norm() / torch.stack(norms).norm())

    def bytes_per_parameter(self) -> dict[str, float]:
        """Returns bytes of weights with masters, gradients, and states, for each weight."""
        extras = [stored.master.extra for p in self.low if (stored := stored_of(p)) is not None]
        states = [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
        kinds = {
            "weights": [*self.low, *(extra for extra in extras if extra is not None)],
            "gradients": [p.grad for p in self.low if p.grad is not None],
            "states": states,
        }
        count = sum(p.numel() for p in self.low)
        found = {kind: sum(t.untyped_storage().nbytes() for t in tensors) / count for kind, tensors in kinds.items()}
        return {**found, "all": sum(found.values())}


def _updates(part: Part, name: str, mode: Mode) -> None:
    # Odd sizes beside large ones: more than one stretch of 2**25 elements on a GPU.
    shapes = ((33, 65), (7,), (128, 64)) if part.is_tiny else ((33, 65), (7,), (1,), (4096, 4096), (5000, 5001))
    training = SideBySide(OPTIMIZERS[name], mode, part.device, shapes)
    for _ in range(5):
        training.step()
    same, distance, sizes = training.same_bits(), training.distance(), training.bytes_per_parameter()
    bits = "float32's bits" if same else f"{distance:.1e} from float32"
    listed = ", ".join(f"{kind} {size:.2f}" for kind, size in sizes.items())
    part.row(
        f"{name:15} {mode:11} {bits:22} bytes per parameter: {listed}",
        optimizer=name,
        mode=mode,
        same_bits=same,
        relative_distance=distance,
        bytes_per_parameter=sizes,
    )
    if mode in EXACT:
        part.check(f"float32's bits, {name}, {mode}", same, bits)
    else:
        part.check(f"near float32, {name}, {mode}", distance < _NEAR[mode], f"{bits}, {_NEAR[mode]:.1e} allowed")
    expected = _WEIGHT_BYTES[mode]
    part.check(
        f"bytes of weight and master, {name}, {mode}",
        abs(sizes["weights"] - expected) < 0.01,
        f"{sizes['weights']:.2f}, {expected} by the documentation",
    )


# -- time -------------------------------------------------------------------------------------------------------------


def _time_of_updates(part: Part) -> None:
    shape, matrices = ((16, 16), 2) if part.is_tiny else ((2048, 2048), 16)

    def updating(mode: Mode | None) -> Callable[[], None]:
        weights = [nn.Parameter(torch.randn(shape, device=part.device)) for _ in range(matrices)]
        inner = torch.optim.AdamW(weights, 1e-3, fused=True)
        optimizer = inner if mode is None else MasterWeights(inner, mode, dtype=torch.bfloat16)
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        return lambda: optimizer.step() and None

    runs: dict[str, Callable[[], None]] = {"fused AdamW": updating(None)}
    runs |= {mode: updating(mode) for mode in MODES}
    times = take_turns(runs, part.device, warm_up=4, rounds=3 if part.is_tiny else 50, seconds=6)
    for mode in MODES:
        found = ratio(times[mode], times["fused AdamW"])
        part.row(
            f"the update alone, {mode:11} {found.median:.2f} ({found.low:.2f} to {found.high:.2f}) times fused AdamW's",
            what="time of the update over fused AdamW's",
            mode=mode,
            parameters=matrices * shape[0] * shape[1],
            ratio=found._asdict(),
            milliseconds=1e3 * statistics.median(times[mode]),
        )


def _by_hand(model: Model, device: str) -> Callable[[], None]:
    """Returns a step of bfloat16 autocast and fused AdamW, as a loop written by hand has it."""
    module = model.made().to(device)
    optimizer = model.optimizer(module)
    batch = [t.to(device) for t in model.batch(0)]

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = model.loss(module, *batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _time_of_steps(part: Part, model: Model) -> None:
    with ExitStack() as stack:
        runs = {"autocast": _by_hand(model, part.device)}
        for mode in MODES:
            plan = recipe("bf16-master", weights=Weights(master=mode))
            runs[mode] = training(model, plan, part.device, stack)
        times = take_turns(runs, part.device, warm_up=4, rounds=3 if part.is_tiny else 25, seconds=6)
    for mode in MODES:
        found = ratio(times[mode], times["autocast"])
        text = f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f}) times that of autocast"
        part.row(
            f"a step of {model.name}, {mode:11} {text}, {1e3 * statistics.median(times['autocast']):.2f} ms",
            what="time of a training step over that of autocast and fused AdamW",
            model=model.name,
            mode=mode,
            ratio=found._asdict(),
            milliseconds=1e3 * statistics.median(times[mode]),
            autocast_milliseconds=1e3 * statistics.median(times["autocast"]),
        )

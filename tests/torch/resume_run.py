# SPDX-License-Identifier: Apache-2.0
"""A training run that saves, goes on from what it saved, and can be killed; `python -m` kills it half-way."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from floatwise.plan import LossScale, Plan, Weights, recipe
from floatwise.torch import Precision, StepInfo, prepare
from floatwise.torch.average import WeightAverage
from floatwise.torch.masters import float32_value

__all__ = ["KILLED_IN", "LAST", "PLANS", "SAVED_AFTER", "Run"]

#: Steps are numbered from 1. The scale of float16 overflows in the first, and grows every second step after.
SAVED_AFTER, KILLED_IN, LAST = 4, 6, 10

_SCALE = LossScale(initial_scale=2.0**20, growth_interval=2, growth="fixed")


def _master(name: str, mode: Any) -> Plan:
    scale = {"loss_scale": _SCALE} if name.startswith("fp16") else {}
    return recipe(name, weights=Weights(master=mode), **scale)


PLANS: dict[str, Plan] = {
    "fp32": recipe("fp32"),
    "bf16-mixed": recipe("bf16-mixed"),
    "fp16-mixed": recipe("fp16-mixed", loss_scale=_SCALE),
    "bf16-master split": _master("bf16-master", "split"),
    "bf16-master float32": _master("bf16-master", "float32"),
    "bf16-master kahan": _master("bf16-master", "kahan"),
    "bf16-master stochastic": _master("bf16-master", "stochastic"),
}
if hasattr(Tensor, "grad_dtype"):
    PLANS["fp16-master float32"] = _master("fp16-master", "float32")


class Run:
    """Model, optimizer, schedule, average and random state of a run under one plan.

    Args:
      plan: The plan.
      saved: What `state` returned, to go on from.
      first_load: True loads the model and the optimizer before `prepare`, not after.
    """

    def __init__(self, plan: Plan, saved: dict[str, Any] | None = None, first_load: bool = False) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 16)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=1e-2, total_steps=LAST)
        if saved and first_load:
            self._load_weights(saved)
        self.precision: Precision = prepare(self.model, self.optimizer, plan)
        self.average = WeightAverage(self.model, 0.9)
        self.step_number = 0
        self.random = torch.get_rng_state()
        self.infos: list[StepInfo] = []
        if saved:
            if not first_load:
                self._load_weights(saved)
            self.scheduler.load_state_dict(saved["scheduler"])
            self.precision.load_state_dict(saved["precision"])
            self.average.load_state_dict(saved["average"])
            self.step_number, self.random = saved["step"], saved["random"]

    def _load_weights(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "precision": self.precision.state_dict(),
            "average": self.average.state_dict(),
            "step": self.step_number,
            "random": self.random,
        }

    def step(self) -> str:
        """Trains one step and returns its loss, every bit of it."""
        self.step_number += 1
        generator = torch.Generator().manual_seed(self.step_number)
        x = torch.randn(8, 16, generator=generator)
        torch.set_rng_state(self.random)
        with self.precision.forward():
            loss = functional.mse_loss(self.model(x).float(), x.roll(1, dims=1))
        self.precision.backward(loss)
        self.infos.append(self.precision.step(clip_norm=1.0))
        self.precision.zero_grad()
        if self.infos[-1].stepped:
            self.scheduler.step()
        self.average.update(self.infos[-1])
        self.random = torch.get_rng_state()
        return float(loss.item()).hex()

    def values(self) -> list[Tensor]:
        """Everything that must be equal at the end of an unbroken and of a resumed run."""
        states = [t for s in self.optimizer.state_dict()["state"].values() for t in s.values() if isinstance(t, Tensor)]
        averages = list(self.average.state_dict()["averages"].values())
        stored = [t.detach().clone() for t in (*self.model.parameters(), *self.model.buffers())]
        return [*stored, *map(float32_value, self.model.parameters()), *states, *averages]


def _killed(folder: Path) -> None:
    """Trains all plans in turn, step by step, saves once, and is killed in the middle of a step."""
    runs = {name: Run(plan) for name, plan in PLANS.items()}
    for number in range(1, KILLED_IN + 1):
        for place, run in enumerate(runs.values()):
            if (number, place) == (KILLED_IN, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            run.step()
        if number == SAVED_AFTER:
            torch.save({name: run.state() for name, run in runs.items()}, folder / "part")
            os.replace(folder / "part", folder / "checkpoint.pt")


if __name__ == "__main__":
    _killed(Path(sys.argv[1]))

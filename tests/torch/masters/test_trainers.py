# SPDX-License-Identifier: Apache-2.0
"""`MasterWeights` wrapped by Accelerate and by Lightning Fabric: the same weights as without them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.torch.masters.training import same_bits
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import StepLR

from floatwise.torch.masters import MasterWeights, stored_of

pytestmark = pytest.mark.slow


def made() -> tuple[nn.Module, MasterWeights]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    inner = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return model, MasterWeights(inner, dtype=torch.bfloat16, model=model)


def batch(step: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).bfloat16()


def trained_by_hand(steps: int) -> dict[str, Tensor]:
    model, optimizer = made()
    for step in range(steps):
        model(batch(step)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def check(state: dict[str, Tensor], steps: int) -> None:
    wanted = trained_by_hand(steps)
    assert all(same_bits(state[name], value) for name, value in wanted.items())


def test_accelerate(tmp_path: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = made()
    scheduler = StepLR(optimizer, 100)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            accelerator.backward(model(batch(step)).float().square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    train(0, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Accelerate's own
        accelerator.save_state(str(tmp_path))
        train(2, 4)
        accelerator.load_state(str(tmp_path))
    train(2, 5)
    assert all(stored_of(p) is not None for p in model.parameters())
    check(accelerator.unwrap_model(model).state_dict(), 5)


def test_lightning_fabric(tmp_path: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, on import
        fabric_module = pytest.importorskip("lightning.fabric")
    fabric = fabric_module.Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(*made())

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            fabric.backward(model(batch(step)).float().square().mean())
            optimizer.step()
            optimizer.zero_grad()

    train(0, 2)
    fabric.save(tmp_path / "state", {"model": model, "optimizer": optimizer})
    train(2, 4)
    fabric.load(tmp_path / "state", {"model": model, "optimizer": optimizer})
    train(2, 5)
    check(model.state_dict(), 5)

# SPDX-License-Identifier: Apache-2.0
"""Where a loss scaler's state comes from and goes to: checkpoints, copies, plans."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from floatwise.plan import LossScale
from floatwise.torch import LossScaler


def used() -> LossScaler:
    """A scaler after a good step, an overflow and two good steps."""
    s = LossScaler("cpu", init_scale=8.0, growth_interval=5, floor=2.0, ceiling=1024.0)
    s.scale(torch.zeros(()))
    for found in (0.0, 1.0, 0.0, 0.0):
        s.update_from(torch.tensor(found))
    return s


class TestState:
    @pytest.mark.parametrize("again", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"])
    def test_copies_go_on_where_it_stands(self, again: Callable[[LossScaler], LossScaler]) -> None:
        s = used()
        other = again(s)
        assert other.state_dict() == s.state_dict()
        assert other.last_step == s.last_step == "stepped"
        other.scale(torch.zeros(()))
        other.update_from(torch.tensor(1.0))
        assert other.get_scale() == s.get_scale() / 2

    def test_its_own_state(self) -> None:
        s, other = used(), LossScaler("cpu")
        other.load_state_dict(s.state_dict())
        assert other.state_dict() == s.state_dict()
        assert (other.floor, other.ceiling, other.skipped_steps) == (2.0, 1024.0, 1)

    def test_states_go_both_ways(self) -> None:
        s, stock = used(), GradScaler("cpu")
        stock.load_state_dict(s.state_dict())
        assert stock.state_dict().items() <= s.state_dict().items()
        stock._init_growth_tracker = 4
        s.load_state_dict(stock.state_dict())
        assert stock.state_dict().items() <= s.state_dict().items()
        assert (s.floor, s.skipped_steps) == (2.0, 0)

    @pytest.mark.parametrize("collapsed", [0.0, 2.0**-140, math.inf, math.nan])
    def test_a_collapsed_state_is_raised_to_the_floor(self, collapsed: float) -> None:
        s = LossScaler("cpu", floor=2.0)
        with pytest.warns(UserWarning, match="going on from the floor"):
            s.load_state_dict({**GradScaler("cpu").state_dict(), "scale": collapsed})
        assert s.get_scale() == 2.0

    def test_an_empty_or_partial_state_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="empty"):
            LossScaler("cpu").load_state_dict({})
        with pytest.raises(KeyError):
            LossScaler("cpu").load_state_dict({"scale": 4.0})


class TestFromPlan:
    def test_none_is_disabled(self) -> None:
        assert not LossScaler.from_plan(None, device="cpu").is_enabled()

    @pytest.mark.parametrize("mode", ["dynamic", "static"])
    def test_every_setting_arrives(self, mode: Any) -> None:
        setting = LossScale(
            mode=mode,
            initial_scale=128.0,
            growth_factor=4.0,
            backoff_factor=0.25,
            growth_interval=7,
            floor=2.0,
            ceiling=512.0,
        )
        s = LossScaler.from_plan(setting, device="cpu")
        assert s.state_dict() == {
            "scale": 128.0,
            "growth_factor": 4.0,
            "backoff_factor": 0.25,
            "growth_interval": 7,
            "_growth_tracker": 0,
            "floor": 2.0,
            "ceiling": 512.0,
            "skipped_steps": 0,
            "consecutive_skips": 0,
        }
        assert s.dynamic == (mode == "dynamic")

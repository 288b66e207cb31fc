# SPDX-License-Identifier: Apache-2.0
"""Where a loss scaler's state comes from and goes to: checkpoints, copies, plans."""

from __future__ import annotations

import copy
import inspect
import json
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


class TestResume:
    """A run that is saved and loaded goes on as one that was never interrupted."""

    @staticmethod
    def run(s: LossScaler, updates: range) -> list[tuple[float, int, int]]:
        seen = []
        for i in updates:
            s.scale(torch.ones(()))
            overflows = s.get_scale() >= 2.0**12 or i % 41 == 40
            s.update_from(torch.tensor(float(overflows)), torch.tensor(s.get_scale() / (1 + i // 50)))
            seen.append((s.get_scale(), s.skipped_steps, s.consecutive_skips))
        return seen

    @pytest.mark.parametrize("saved_at", [0, 1, 27, 28, 41, 77, 150])
    @pytest.mark.parametrize("growth", ["headroom", "fixed"])
    @pytest.mark.parametrize("by", ["state", "pickle", "copy"])
    def test_it_is_exact(self, by: str, growth: Any, saved_at: int) -> None:
        settings: dict[str, Any] = {
            "init_scale": 2.0**11,
            "growth_interval": 7,
            "growth": growth,
            "headroom_bits": 3,
            "hysteresis": 2,
            "window_log2": (0, 14),
            "alarm_after": None,
        }
        s = LossScaler("cpu", **settings)
        expected = self.run(s, range(200))
        first = LossScaler("cpu", **settings)
        seen = self.run(first, range(saved_at))
        second = LossScaler("cpu", **settings)
        if by == "state":
            # As torch.load(weights_only=True) and JSON give it back: plain numbers in plain containers.
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        else:
            second = pickle.loads(pickle.dumps(first)) if by == "pickle" else copy.deepcopy(first)
        assert seen + self.run(second, range(saved_at, 200)) == expected

    def test_a_state_of_grad_scaler_begins_a_new_account(self) -> None:
        s = used()
        s.load_state_dict(GradScaler("cpu", init_scale=32.0).state_dict())
        assert (s.get_scale(), s.skipped_steps, s.history) == (32.0, 0, [])
        assert s.state_dict()["_headroom"] == LossScaler("cpu").state_dict()["_headroom"]

    def test_a_state_from_fixed_growth_loads_into_headroom_and_back(self) -> None:
        fixed = LossScaler("cpu", growth="fixed", init_scale=32.0)
        s = LossScaler("cpu")
        s.load_state_dict(fixed.state_dict())
        assert s.get_scale() == 32.0
        fixed.load_state_dict(s.state_dict())
        assert "_headroom" not in fixed.state_dict()

    def test_the_history_is_pickled_and_not_in_the_state(self) -> None:
        s = used()
        other = LossScaler("cpu")
        other.load_state_dict(s.state_dict())
        assert s.history == pickle.loads(pickle.dumps(s)).history == [(2, 8.0, 4.0, True)]
        assert other.history == []

    def test_a_hysteresis_state_has_the_keys_of_nemo(self) -> None:
        s = LossScaler("cpu", init_scale=8.0, hysteresis=3)
        s.scale(torch.ones(()))
        s.update_from(torch.tensor(1.0))
        state = s.state_dict()
        assert (state["hysteresis"], state["_hysteresis_tracker"]) == (3, 2)
        other = LossScaler("cpu")
        other.load_state_dict(state)
        other.scale(torch.ones(()))
        other.update_from(torch.tensor(1.0))
        assert other.get_scale() == 8.0
        other.update_from(torch.tensor(1.0))
        assert other.get_scale() == 4.0


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
            growth="headroom",
            headroom_bits=6,
            hysteresis=3,
            floor=2.0,
            ceiling=512.0,
            window_log2=(3, 8),
        )
        s = LossScaler.from_plan(setting, device="cpu")
        state = s.state_dict()
        assert state.pop("_headroom", None) == (
            {"peak": 0.0, "age": 0, "hold": math.inf, "overflow_scale": 512.0, "overflow_peak": 0.0}
            if mode == "dynamic"
            else None
        )
        assert state == {
            "scale": 128.0,
            "growth_factor": 4.0,
            "backoff_factor": 0.25,
            "growth_interval": 7,
            "_growth_tracker": 0,
            "floor": 2.0,
            "ceiling": 512.0,
            "hysteresis": 3,
            "_hysteresis_tracker": 3,
            "updates": 0,
            "skipped_steps": 0,
            "consecutive_skips": 0,
        }
        assert s.dynamic == (mode == "dynamic")
        assert s._growth is None or s._growth.headroom_bits == 6

    def test_fixed_growth_arrives(self) -> None:
        assert LossScaler.from_plan(LossScale(growth="fixed"), device="cpu")._growth is None

    def test_the_defaults_are_those_of_a_plan(self) -> None:
        own = {name: p.default for name, p in inspect.signature(LossScaler).parameters.items()}
        assert LossScale().model_dump() == {
            "mode": "dynamic",
            "initial_scale": own["init_scale"],
            **{name: own[name] for name in ("growth_factor", "backoff_factor", "growth_interval", "growth")},
            **{name: own[name] for name in ("headroom_bits", "hysteresis", "floor", "ceiling", "window_log2")},
        }

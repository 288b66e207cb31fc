# SPDX-License-Identifier: Apache-2.0
"""Replaced attributes come back, in whatever order and however often."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tap.conftest import overwritten
from tests.tap.listening import Listener
from torch import nn

from floatwise.tap.core import Tap, attach
from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.patches import Patches


class Owner:
    def name(self) -> str:
        return "owner"


class Heir(Owner):
    pass


def shouting(original: Any) -> Any:
    return lambda self: original(self).upper() + "!"


def test_replacements_stack_and_come_off() -> None:
    patches = Patches()
    original = vars(Owner)["name"]
    patches.replace(Owner, "name", shouting)
    patches.replace(Owner, "name", shouting)
    assert Owner().name() == "OWNER!!"
    patches.undo()
    assert vars(Owner)["name"] is original


def test_an_inherited_attribute_is_taken_off_again() -> None:
    patches = Patches()
    patches.replace(Heir, "name", shouting)
    assert (Heir().name(), Owner().name()) == ("OWNER!", "owner")
    patches.undo()
    assert "name" not in vars(Heir)


def test_actions_run_in_reverse_and_once() -> None:
    patches, done = Patches(), []
    for number in range(3):
        patches.on_undo(lambda number=number: done.append(number))  # type: ignore[misc]
    patches.undo()
    patches.undo()
    assert done == [2, 1, 0]


def use_everything(tap: Tap) -> None:
    treatment = ExistingPrecision(tap, compiles=False)
    treatment.install()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.half().parameters(), lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(3, 2)).sum().backward()
    optimizer.step()


def test_a_closed_tap_has_put_everything_back() -> None:
    before = overwritten()
    with attach(Listener()) as tap:
        use_everything(tap)
        changed = {name for name, value in overwritten().items() if value != before[name]}
        assert len(changed) > 15
    assert overwritten() == before


def test_so_has_one_whose_script_raised() -> None:
    def fail() -> None:
        with attach(Listener()) as tap:
            use_everything(tap)
            raise ZeroDivisionError

    before = overwritten()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert overwritten() == before


def test_taps_nest() -> None:
    outer, inner = Listener(inspects_values=False), Listener(inspects_values=False)
    layer = nn.Linear(2, 2)
    with attach(outer):
        with attach(inner):
            layer(torch.randn(1, 2))
        layer(torch.randn(1, 2))
    assert (len(inner.of("root_entered")), len(outer.of("root_entered"))) == (1, 2)

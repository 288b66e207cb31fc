# SPDX-License-Identifier: Apache-2.0
"""Names of modules: the same in every run, whatever wraps a model and in whatever order its parts are called."""

from __future__ import annotations

import copy
import sys
import time
import types
from collections.abc import Callable

import pytest
import torch
from tests.tap.listening import Listener
from torch import Tensor, nn

from floatwise.tap.core import Tap
from floatwise.tap.paths import ModulePaths
from floatwise.tap.walk import walk_modules


class TwoPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.encoder(x))
        return output


def named(module: nn.Module, type_name: str, attribute: str) -> nn.Module:
    """Wraps `module` in a class of a library's name, which keeps it under the library's attribute."""
    wrapper: nn.Module = type(type_name, (nn.Module,), {})()
    setattr(wrapper, attribute, module)
    return wrapper


WRAPPERS = [
    ("OptimizedModule", "_orig_mod"),
    ("DistributedDataParallel", "module"),
    ("DataParallel", "module"),
    ("FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("CheckpointWrapper", "_checkpoint_wrapped_module"),
    ("DeepSpeedEngine", "module"),
    ("_FabricModule", "_forward_module"),
]


@pytest.mark.parametrize(("type_name", "attribute"), WRAPPERS)
def test_wrappers_add_nothing_to_a_path(type_name: str, attribute: str) -> None:
    model = TwoPart()
    bare = {id(module): path for path, module in model.named_modules()}
    for wrapped in (named(model, type_name, attribute), named(named(model, *WRAPPERS[0]), type_name, attribute)):
        paths = {id(module): path for path, module in walk_modules(wrapped)}
        assert {key: paths[key] for key in bare} == bare


def test_a_part_of_the_users_own_that_is_called_module_stays() -> None:
    assert [path for path, _ in walk_modules(named(nn.Linear(2, 2), "Mine", "module"))] == ["", "module"]


def test_real_wrappers() -> None:
    model = TwoPart()
    names = ModulePaths()
    assert names.of(nn.DataParallel(model)) == ""
    assert names.of(model.encoder[0]) == "encoder.0"


def test_a_shared_module_has_its_first_path() -> None:
    layer = nn.Linear(3, 3)
    names = ModulePaths()
    assert names.of(nn.Sequential(layer, nn.ReLU(), layer)) == ""
    assert names.of(layer) == "0"


def test_parts_called_one_by_one_belong_to_one_model() -> None:
    model, names = TwoPart(), ModulePaths()
    assert [names.of(m) for m in (model.head, model.encoder, model.encoder[0], model)] == [
        "head",
        "encoder",
        "encoder.0",
        "",
    ]


def test_further_models_are_named_as_in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    generator, discriminator, other = TwoPart(), TwoPart(), TwoPart()
    main.__dict__.update(netG=generator, netD=discriminator, _hidden=other)
    monkeypatch.setitem(sys.modules, "__main__", main)
    names = ModulePaths()
    assert names.of(discriminator.head) == "head"
    assert names.of(generator.head) == "netG.head"
    assert names.of(other.head) == "TwoPart.head"
    assert names.of(copy.deepcopy(other).head) == "TwoPart_2.head"


def test_what_trains_nothing_does_not_take_the_first_place() -> None:
    teacher, student, names = TwoPart(), TwoPart(), ModulePaths()
    teacher.requires_grad_(False)
    assert names.of(nn.MSELoss()) == "MSELoss"
    assert names.of(teacher) == "TwoPart"
    assert names.of(student) == ""


def test_a_part_that_ran_before_its_model_was_made_is_named_with_it() -> None:
    convolution, names = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), ModulePaths()
    assert names.of(convolution[0]) == "0"  # its output size is tried out
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(4, 2))
    assert names.of(model) == ""
    assert names.of(convolution) == "0"
    assert names.of(convolution[0]) == "0.0"
    assert names.of(model[2]) == "2"


def test_a_part_added_later_belongs_to_its_model() -> None:
    model, names = TwoPart(), ModulePaths()
    names.of(model)
    model.extra = nn.Linear(2, 2)
    assert names.of(model.extra) == "extra"


@pytest.mark.parametrize("make", [nn.MSELoss, nn.ReLU, lambda: nn.Linear(2, 2)])
def test_a_module_made_anew_in_every_step_is_one_module(make: Callable[[], nn.Module]) -> None:
    model, names = TwoPart(), ModulePaths()
    names.of(model)
    assert len({names.of(make()) for _ in range(5)}) == 1


def test_modules_of_one_kind_that_live_together_are_told_apart() -> None:
    names, losses = ModulePaths(), [nn.MSELoss(), nn.MSELoss()]
    assert [names.of(loss) for loss in losses] == ["MSELoss", "MSELoss_2"]


def test_a_second_training_of_a_new_model_has_the_names_of_the_first() -> None:
    names = ModulePaths()
    for _ in range(3):  # folds of a cross-validation
        assert names.of(TwoPart()) == ""


def test_naming_what_is_made_in_every_step_is_quick() -> None:
    names = ModulePaths()
    names.of(nn.MSELoss())
    start = time.perf_counter()
    for _ in range(100):
        names.of(nn.MSELoss())
    # Measured: 0.1 s for each look at all objects of a process with torch, microseconds without.
    assert time.perf_counter() - start < 5.0


def test_models_are_named_in_the_order_they_come_whatever_the_gradient_mode(tap: Tap, heard: Listener) -> None:
    first, second = TwoPart(), TwoPart()
    with torch.no_grad():
        first(torch.randn(2, 4))  # a sample before training: nothing is inspected yet
    second(torch.randn(2, 4))
    first(torch.randn(2, 4))
    paths = [path for (path,) in heard.of("module_called")]
    assert paths == [
        "TwoPart.encoder.0",
        "TwoPart.encoder.1",
        "TwoPart.encoder",
        "TwoPart.head",
        "TwoPart",
        "encoder.0",
        "encoder.1",
        "encoder",
        "head",
        "",
    ]


def test_modules_are_not_kept_alive() -> None:
    import weakref

    names, model = ModulePaths(), TwoPart()
    names.of(model)
    assert names.of(model.head) == "head"
    gone = weakref.ref(model)
    del model
    assert gone() is None

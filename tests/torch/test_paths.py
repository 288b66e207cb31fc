# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from floatwise.tap.paths import ModulePaths
from floatwise.torch import module_paths


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"module": nn.Linear(2, 2)}))


PATHS = ["", "0", "1", "1.module"]


def compiled(module: nn.Module) -> nn.Module:
    wrapped: object = torch.compile(module, backend="eager")
    assert isinstance(wrapped, nn.Module)
    return wrapped


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda m: m,
    "DataParallel": nn.DataParallel,
    "compile": compiled,
    "both": lambda m: nn.DataParallel(compiled(m)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_leave_no_trace(wrapper: str) -> None:
    inner = model()
    paths = module_paths(WRAPPERS[wrapper](inner))
    assert list(paths) == PATHS
    assert paths[""] is inner


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_tap_gives_the_same_names(wrapper: str) -> None:
    wrapped = WRAPPERS[wrapper](model())
    names = ModulePaths()
    assert {path: names.of(module) for path, module in module_paths(wrapped).items()} == {p: p for p in PATHS}


def test_a_wrapped_block_within_a_model() -> None:
    outer = nn.Sequential(nn.Linear(2, 2), nn.DataParallel(nn.Sequential(nn.Linear(2, 2))))
    assert list(module_paths(outer)) == ["", "0", "1", "1.0"]


def test_a_shared_module_has_all_its_paths() -> None:
    shared = nn.Linear(2, 2)
    paths = module_paths(nn.ModuleDict({"encoder": shared, "decoder": nn.Sequential(shared)}))
    assert [path for path, module in paths.items() if module is shared] == ["encoder", "decoder.0"]


def test_a_module_that_holds_its_ancestor() -> None:
    child = nn.Sequential()
    parent = nn.Sequential(child)
    child.add_module("parent", parent)
    assert list(module_paths(parent)) == ["", "0"]

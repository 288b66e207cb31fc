# SPDX-License-Identifier: Apache-2.0
"""Every test here must leave the process as it found it, and starts from the same random state."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch
import torch._dynamo  # when it is imported, as the first optimizer does, it replaces a few functions for good
import torch.nn.functional as F
from tests.tap.listening import Listener
from torch import nn
from torch.optim import optimizer as torch_optimizer

from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision


def overwritten() -> dict[str, Any]:
    """Returns everything of torch's that the tap, the script's treatment or a seed shift may overwrite."""
    owners: list[tuple[Any, str]] = [
        (nn.Module, "__call__"),
        (nn.Module, "to"),
        (nn.Module, "half"),
        (nn.Module, "bfloat16"),
        (torch.Tensor, "to"),
        (torch.Tensor, "type"),
        (torch.Tensor, "half"),
        (torch.Tensor, "bfloat16"),
        (torch.autograd, "backward"),
        (torch.autograd, "grad"),
        (torch, "compile"),
        (torch, "manual_seed"),
        (torch, "set_default_dtype"),
        (torch, "set_default_tensor_type"),
        (torch.amp.autocast_mode.autocast, "__init__"),
        (torch.amp.autocast_mode.autocast, "__enter__"),
        (torch.amp.autocast_mode.autocast, "__exit__"),
        (torch.amp.GradScaler, "__init__"),
        (torch.amp.GradScaler, "state_dict"),
        (torch.amp.GradScaler, "load_state_dict"),
        (torch, "save"),
        (torch, "load"),
        (os, "replace"),
        (os, "rename"),
        (os, "remove"),
        (os, "unlink"),
        (torch.optim.Optimizer, "add_param_group"),
        (torch.multiprocessing, "spawn"),
        (torch.multiprocessing, "start_processes"),
        (BaseProcess, "start"),
        (F, "multi_head_attention_forward"),
    ]
    now = {f"{getattr(owner, '__name__', owner)}.{name}": vars(owner).get(name) for owner, name in owners}
    hooks = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return {**now, "hooks": [dict(each) for each in hooks], "importers": list(sys.meta_path)}


@pytest.fixture(autouse=True)
def _same_process_after() -> Iterator[None]:
    torch.manual_seed(0)
    before = overwritten()
    yield
    after = overwritten()
    assert {name for name in before if before[name] != after[name]} == set()
    assert torch.get_default_dtype() is torch.float32
    assert torch._C._len_torch_function_stack() == 0


@pytest.fixture
def heard() -> Listener:
    """What the test's tap has told."""
    return Listener()


@pytest.fixture
def tap(heard: Listener) -> Iterator[Tap]:
    """An open tap that `heard` listens to."""
    with Tap([heard]) as opened:
        yield opened


@pytest.fixture
def existing(tap: Tap) -> ExistingPrecision:
    """The script's own precision is replaced by float32, as in a recording."""
    treatment = ExistingPrecision(tap, compute_dtype=None, compiles=False)
    treatment.install()
    return treatment

# SPDX-License-Identifier: Apache-2.0
"""Kernels in PyTorch's dispatcher: there while anyone holds them, gone afterwards, and known to torch.compile."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from itertools import chain, combinations
from typing import Any

import pytest
import torch

from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.products import MatrixUnits
from floatwise.torch.cuda_policy import CudaPolicy
from floatwise.torch.held_kernels import HeldKernels, KernelHold

OPERATOR = "exp2"  # autocast has no rule for it
KINDS = (CudaPolicy, CudaSpecials, MatrixUnits)


def is_registered() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{OPERATOR}", "AutocastCPU")


@pytest.fixture
def kernels() -> Iterator[HeldKernels]:
    assert not is_registered(), "choose another operator"
    yield HeldKernels(lambda library, parts: library.impl(OPERATOR, lambda x: x, "AutocastCPU"), 4)
    assert not is_registered()


def test_the_last_of_several_holders_removes_them(kernels: HeldKernels) -> None:
    one, two = KernelHold(kernels), KernelHold(kernels)
    one.close()
    one.close()
    assert (is_registered(), one.active, two.active) == (True, False, True)
    two.close()
    assert not is_registered()
    with KernelHold(kernels) as again:
        assert is_registered()
        assert again.active


def test_a_part_counts_on_its_own() -> None:
    seen: list[Collection[Any]] = []
    kernels = HeldKernels(lambda library, parts: seen.append(parts), 4)
    with KernelHold(kernels, ["a"]):
        with KernelHold(kernels, ["a", "b"]):
            assert set(seen[0]) == {"a", "b"}
        assert set(seen[0]) == {"a"}
    assert len(seen) == 1
    assert not seen[0]


def test_a_registration_that_fails_leaves_nothing() -> None:
    def register(library: torch.library.Library, parts: Collection[Any]) -> None:
        library.impl(OPERATOR, lambda x: x, "AutocastCPU")
        raise KeyError

    kernels = HeldKernels(register, 4)
    for _ in range(2):
        with pytest.raises(KeyError):
            KernelHold(kernels)
        assert not is_registered()
    assert not torch.is_autocast_enabled("ipu")


def test_threads_may_hold_and_release_at_once(kernels: HeldKernels) -> None:
    def hold() -> None:
        for _ in range(50):
            with KernelHold(kernels):
                seen.append(is_registered())

    seen: list[bool] = []
    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 200


def test_torch_compile_can_tell_every_combination_from_every_other() -> None:
    def state() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled("ipu"), torch.get_autocast_dtype("ipu")

    before, states = state(), []
    for chosen in chain.from_iterable(combinations(KINDS, n) for n in range(len(KINDS) + 1)):
        with ExitStack() as stack:
            for kind in chosen:
                stack.enter_context(kind())
            states.append(state())
        assert state() == before
    assert states[0] == before
    assert len(set(states)) == 2 ** len(KINDS)

# SPDX-License-Identifier: Apache-2.0
"""Unscaling on one rank, against GradScaler's own on the same gradients."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD

from floatwise.torch.distributed.agreement import _reducing_device, found_inf_everywhere, unscale_gradients

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def optimizer_of(*gradients: Tensor | None) -> SGD:
    parameters = []
    for gradient in gradients:
        like = torch.zeros(2) if gradient is None else gradient
        parameters.append(nn.Parameter(torch.zeros(like.shape, dtype=like.dtype)))
        parameters[-1].grad = gradient
    return SGD(parameters, lr=0.1)


def gradients_of(optimizer: SGD) -> list[Tensor]:
    dense = []
    for parameter in optimizer.param_groups[0]["params"]:
        gradient = parameter.grad
        dense.append(torch.zeros(0) if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient)
    return dense


def assert_as_grad_scaler(*gradients: Tensor | None, inverse: float, start: float = 0.0) -> dict[torch.device, Tensor]:
    """Unscales the gradients, and copies of them by GradScaler; returns our finding."""
    theirs, optimizer = optimizer_of(*[None if g is None else g.clone() for g in gradients]), optimizer_of(*gradients)
    numbers = torch.tensor(inverse), torch.tensor(start)
    stock = GradScaler("cpu")._unscale_grads_(theirs, *numbers, True)
    found = unscale_gradients(optimizer, *numbers, True)
    assert found == stock
    for ours, reference in zip(gradients_of(optimizer), gradients_of(theirs), strict=True):
        assert ours.dtype == reference.dtype
        torch.testing.assert_close(ours, reference, rtol=0, atol=0, equal_nan=True)
    return found


any_float = st.floats(width=32, allow_subnormal=True)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(arrays(np.float32, st.integers(0, 6), elements=any_float), min_size=1, max_size=4),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=4, max_size=4),
    exponent=st.floats(-126, 30),
)
def test_gradients_and_finding_are_grad_scalers(
    values: list[np.ndarray[tuple[int], np.dtype[np.float32]]], dtypes: list[torch.dtype], exponent: float
) -> None:
    gradients = [torch.from_numpy(v).to(dtype) for v, dtype in zip(values, dtypes, strict=False)]
    before = [g.clone() for g in gradients]
    found = assert_as_grad_scaler(*gradients, inverse=2.0**exponent)
    assert found == {CPU: torch.tensor(float(not all(g.isfinite().all() for g in before)))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sparse_entries_of_one_index_are_added_before_they_are_judged(dtype: torch.dtype) -> None:
    values = torch.tensor([[40000.0], [40000.0]], dtype=dtype)
    gradient = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), values, (3, 1), check_invariants=True)
    found = assert_as_grad_scaler(gradient, inverse=1.0)
    assert found[CPU].item() == float(dtype == torch.float16)  # 80000 is infinite in float16


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_the_finding_starts_from_the_one_given_and_leaves_that_alone(start: float) -> None:
    given = torch.tensor(start)
    found = unscale_gradients(optimizer_of(torch.tensor([math.inf])), torch.tensor(1.0), given, False)
    assert (found[CPU].item(), given.item()) == (1.0, start)
    assert_as_grad_scaler(torch.ones(2), inverse=0.5, start=start)


def test_parameters_without_a_gradient_are_passed_over() -> None:
    assert unscale_gradients(optimizer_of(None), torch.tensor(0.5), torch.tensor(0.0), False) == {}
    gradient = torch.ones(2)
    assert_as_grad_scaler(None, gradient, inverse=0.5)
    assert gradient.tolist() == [0.5, 0.5]


def test_float16_gradients_are_refused_in_grad_scalers_words() -> None:
    said = []
    for unscale in (unscale_gradients, GradScaler("cpu")._unscale_grads_):
        with pytest.raises(ValueError, match="FP16") as caught:
            unscale(optimizer_of(torch.ones(2, dtype=torch.float16)), torch.tensor(0.5), torch.tensor(0.0), False)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_without_other_processes_the_finding_is_everyones() -> None:
    found = {CPU: torch.tensor(1.0)}
    assert found_inf_everywhere(found, [torch.zeros(1)]) is found


@pytest.mark.parametrize(
    ("backends", "homes", "chosen"),
    [
        ("cpu:gloo,cuda:gloo", ["cpu"], "cpu"),
        ("cpu:gloo,cuda:nccl", ["cuda:1"], "cuda:1"),
        ("cpu:gloo,cuda:nccl", ["cpu", "cuda:1"], "cuda:1"),  # some parameters are offloaded
        ("cpu:gloo,cuda:nccl", ["cpu"], "cpu"),
        ("cuda:nccl", ["cpu"], "cuda"),  # all are, and the group cannot reduce there
        ("cuda:nccl", [], "cuda"),
    ],
)
def test_the_finding_is_reduced_where_the_group_can(backends: str, homes: list[str], chosen: str) -> None:
    # The rule itself: no machine of the tests has a group over accelerators.
    with mock.patch.object(dist, "get_backend_config", return_value=backends):
        assert _reducing_device(None, map(torch.device, homes)) == torch.device(chosen)

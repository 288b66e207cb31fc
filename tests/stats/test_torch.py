# SPDX-License-Identifier: Apache-2.0
"""Summaries of torch tensors against those of NumPy arrays, and what of a sample is exact."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from floatwise.stats import TensorSummary, summarise
from floatwise.stats.torch import SAMPLED_ELEMENTS, SummaryCollector, cast


def collected(tensor: Tensor, sampled: int | None = None, times: int = 1) -> TensorSummary:
    collector: SummaryCollector[str] = SummaryCollector(sampled)
    for _ in range(times):
        collector.add("x", tensor)
    collector.flush()
    return collector.summaries()["x"]


def reference(tensor: Tensor) -> TensorSummary:
    return summarise(tensor.detach().to(torch.float32).contiguous().numpy())


def agree(ours: TensorSummary, expected: TensorSummary) -> None:
    assert ours.counts.tolist() == expected.counts.tolist()
    for name in ("amax", "elements", "zeros", "nonfinite", "observations"):
        assert getattr(ours, name) == getattr(expected, name), name
    assert ours.signal == pytest.approx(expected.signal, rel=1e-9)
    for name, noise in expected.noise.items():
        assert ours.noise[name] == pytest.approx(noise, rel=1e-6)


def wide(*shape: int) -> Tensor:
    """Values of every magnitude that float16 and bfloat16 treat differently."""
    return torch.randn(shape) * torch.exp2(torch.randint(-30, 20, shape))


TENSORS: list[tuple[str, Callable[[], Tensor]]] = [
    ("one value", lambda: torch.tensor(3.25)),
    ("a vector", lambda: wide(1000)),
    ("a matrix", lambda: wide(30, 40)),
    ("transposed", lambda: wide(30, 40).T),
    ("strided", lambda: wide(64, 64)[::2, 1::3]),
    ("expanded", lambda: wide(1, 8).expand(16, 8)),
    ("channels last", lambda: wide(2, 3, 8, 8).to(memory_format=torch.channels_last)),
    ("bfloat16", lambda: cast(wide(500), torch.bfloat16)),
    ("float16", lambda: cast(torch.randn(500) * 100, torch.float16)),
    ("float64", lambda: wide(500).double() / 3),
    ("float64 beyond float32", lambda: torch.tensor([1e300, -1e-300, 2.0], dtype=torch.float64)),
    ("zeros of both signs", lambda: torch.tensor([0.0, -0.0, 1.0, 0.0])),
    ("only zeros", lambda: torch.zeros(10)),
    ("subnormal", lambda: torch.tensor([1e-40, -1e-45, 0.0])),
    ("needs a gradient", lambda: torch.ones(3, requires_grad=True) * 2),
    ("a parameter", lambda: torch.nn.Parameter(torch.randn(5))),
]


@pytest.mark.parametrize(("_", "make"), TENSORS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_value_counted_is_what_numpy_counts(_: str, make: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    tensor = make()
    agree(collected(tensor), reference(tensor))


@pytest.mark.parametrize(("_", "make"), TENSORS, ids=lambda value: value if isinstance(value, str) else "")
def test_small_tensors_are_not_sampled(_: str, make: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    tensor = make()
    ours, expected = collected(tensor, SAMPLED_ELEMENTS), reference(tensor)
    assert ours.counts.tolist() == expected.counts.tolist()
    assert (ours.amax, ours.zeros, ours.elements) == (expected.amax, expected.zeros, expected.elements)


BAD_VALUES = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("bad", BAD_VALUES)
@pytest.mark.parametrize("sampled", [None, SAMPLED_ELEMENTS])
def test_values_that_are_not_finite(bad: float, sampled: int | None) -> None:
    tensor = torch.tensor([1.0, bad, -5.0, 0.0])
    ours = collected(tensor, sampled)
    assert (ours.amax, ours.nonfinite, ours.zeros, ours.elements) == (5.0, 1, 1, 4)
    assert ours.signal == 26.0


def test_nothing_but_nan() -> None:
    ours = collected(torch.full((4,), math.nan))
    assert (ours.amax, ours.nonfinite, ours.signal) == (0.0, 4, 0.0)


@settings(max_examples=50)
@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=200))
def test_any_float32_values(values: list[float]) -> None:
    array = np.array(values, np.float32)
    ours, expected = collected(torch.from_numpy(array)), summarise(array)
    assert ours.counts.tolist() == expected.counts.tolist()
    assert (ours.amax, ours.zeros, ours.nonfinite) == (expected.amax, expected.zeros, expected.nonfinite)


PASSED_OVER: list[Callable[[], Tensor]] = [
    lambda: torch.empty(0),
    lambda: torch.empty(3, 0, 2),
    lambda: torch.eye(3).to_sparse(),
    lambda: torch.empty(3, device="meta"),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
]


@pytest.mark.parametrize("make", PASSED_OVER)
def test_tensors_without_plain_values_are_passed_over(make: Callable[[], Tensor]) -> None:
    collector: SummaryCollector[str] = SummaryCollector()
    collector.add("x", make())
    collector.flush()
    assert collector.summaries() == {}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_values(dtype: torch.dtype) -> None:
    tensor = cast(torch.tensor([1.0, -2.5, 0.0, 448.0]), dtype)
    agree(collected(tensor), reference(tensor))


def test_values_are_taken_as_they_are_when_added() -> None:
    for sampled in (None, 2, SAMPLED_ELEMENTS):
        collector: SummaryCollector[str] = SummaryCollector(sampled)
        tensor = torch.ones(8)
        collector.add("x", tensor)
        tensor.fill_(100.0)  # an optimizer steps before the flush
        collector.flush()
        assert collector.summaries()["x"].amax == 1.0
        assert int(collector.summaries()["x"].counts[127]) > 0


LARGE = SAMPLED_ELEMENTS * 5 + 7


def test_a_sample_knows_the_largest_value_exactly() -> None:
    torch.manual_seed(0)
    for position in (0, 1, LARGE // 2, LARGE - 1):
        tensor = torch.randn(LARGE)
        tensor[position] = -1000.0
        ours = collected(tensor, SAMPLED_ELEMENTS)
        assert ours.amax == 1000.0
        assert ours.elements == LARGE
        assert SAMPLED_ELEMENTS / 2 <= ours.seen <= SAMPLED_ELEMENTS * 1.5


@pytest.mark.parametrize("width", [64, 256, 1000, 1024, 4096])
def test_a_sample_sees_every_column_alike(width: int) -> None:
    """A matrix whose columns have magnitudes of their own: a stride in step with its rows would see few of them."""
    rows = 200_000 // width
    tensor = torch.exp2(torch.arange(width) % 8).expand(rows, width).contiguous()
    ours = collected(tensor, SAMPLED_ELEMENTS)
    shares = ours.counts[127:135] / ours.seen
    assert shares == pytest.approx([1 / 8] * 8, abs=0.02)


def test_a_sample_of_many_tensors_is_unbiased() -> None:
    torch.manual_seed(0)
    tensor = torch.where(torch.rand(LARGE) < 0.01, 1e-9, 1.0)
    ours = collected(tensor, SAMPLED_ELEMENTS)
    rare = int(ours.counts[:127].sum()) / ours.seen
    assert rare == pytest.approx(0.01, abs=4 * math.sqrt(0.01 * 0.99 / ours.seen))


def test_noise_of_a_sample_is_near_the_whole_tensors() -> None:
    torch.manual_seed(0)
    tensor = torch.randn(LARGE)
    ours, whole = collected(tensor, SAMPLED_ELEMENTS), reference(tensor)
    for name in ("float16", "bfloat16"):
        assert ours.sqnr_db(name) == pytest.approx(whole.sqnr_db(name), abs=0.5)


def test_keys_are_apart_and_steps_are_merged() -> None:
    torch.manual_seed(0)
    collector: SummaryCollector[tuple[str, str]] = SummaryCollector()
    tensors = {("a", "weight"): wide(100), ("a", "input"): wide(7, 9), ("b", "weight"): wide(1)}
    for _ in range(3):
        for key, tensor in tensors.items():
            collector.add(key, tensor)
        collector.flush()
        collector.flush()
    for key, tensor in tensors.items():
        one = reference(tensor)
        agree(collector.summaries()[key], one + one + one)


def test_several_tensors_of_one_key_in_one_step() -> None:
    agree(collected(torch.arange(6.0), SAMPLED_ELEMENTS, times=4), sum_of([reference(torch.arange(6.0))] * 4))


def sum_of(summaries: list[TensorSummary]) -> TensorSummary:
    total = summaries[0]
    for summary in summaries[1:]:
        total = total + summary
    return total


def test_another_default_device_does_not_matter() -> None:
    torch.set_default_device("meta")
    try:
        tensor = torch.ones(4, device="cpu")
        collector: SummaryCollector[str] = SummaryCollector()
        collector.add("x", tensor)
        collector.add("y", tensor)
        collector.flush()
    finally:
        torch.set_default_device(None)
    assert collector.summaries()["y"].amax == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_cast_makes_a_copy(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, 1 + 2**-9])
    copy = cast(tensor, dtype)
    assert copy.dtype is dtype
    assert copy.data_ptr() != tensor.data_ptr()


def test_every_value_of_a_large_tensor_is_counted() -> None:
    tensor = torch.randn((1 << 20) + 3)  # more than one pass
    tensor[12345] = 77.0
    tensor[54321] = math.inf
    ours, expected = collected(tensor), reference(tensor)
    assert ours.counts.tolist() == expected.counts.tolist()
    assert (ours.amax, ours.nonfinite, ours.elements) == (77.0, 1, tensor.numel())
    assert ours.sqnr_db("bfloat16") == pytest.approx(expected.sqnr_db("bfloat16"), abs=0.5)  # of a sample


def test_a_tensor_that_comes_again_is_looked_at_once_and_counted_twice() -> None:
    collector: SummaryCollector[str] = SummaryCollector()
    tensor = torch.tensor([1.0, 2.0])
    collector.add("output", tensor)
    collector.add("input", tensor)
    collector.add("input", tensor)
    tensor.mul_(8.0)  # changed in place: another tensor to a reader
    collector.add("input", tensor)
    collector.flush()
    found = collector.summaries()
    assert (found["output"].amax, found["output"].observations) == (2.0, 1)
    assert (found["input"].amax, found["input"].observations) == (16.0, 3)


def test_a_tensor_made_where_another_was_is_another() -> None:
    collector: SummaryCollector[int] = SummaryCollector()
    for index in range(50):
        collector.add(index, torch.full((3,), float(index)))
    collector.flush()
    assert [collector.summaries()[index].amax for index in range(50)] == list(range(50))

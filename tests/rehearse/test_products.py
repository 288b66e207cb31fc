# SPDX-License-Identifier: Apache-2.0
"""Each product's values: exact operands, float32 sums, one rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from floatwise.rehearse import product_kernels
from floatwise.rehearse.products import MatrixUnits

LOW = [torch.float16, torch.bfloat16]
Function = Callable[..., Tensor]


@pytest.fixture
def units() -> Iterator[MatrixUnits]:
    with MatrixUnits(LOW) as held:
        yield held


def conv(function: Function, **options: int) -> Function:
    return lambda x, w, b: function(x, w, b, **options)


# Every function is linear in each of its arguments: name → function and the shapes of the arguments.
CASES: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(5, 70), (70, 6)]),
    "mm of transposed": (lambda a, b: torch.mm(a.t(), b.t()), [(70, 5), (6, 70)]),
    "bmm": (torch.bmm, [(3, 5, 40), (3, 40, 6)]),
    "mv": (torch.mv, [(6, 50), (50,)]),
    "dot": (torch.dot, [(60,), (60,)]),
    "vdot": (torch.vdot, [(60,), (60,)]),
    "addmm": (torch.addmm, [(6,), (5, 30), (30, 6)]),
    "addmm scaled": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(5, 6), (5, 30), (30, 6)]),
    "addmv": (torch.addmv, [(5,), (5, 30), (30,)]),
    "baddbmm": (torch.baddbmm, [(3, 5, 6), (3, 5, 30), (3, 30, 6)]),
    "addbmm": (torch.addbmm, [(5, 6), (3, 5, 30), (3, 30, 6)]),
    "linear": (F.linear, [(4, 3, 50), (6, 50), (6,)]),
    "matmul of many": (torch.matmul, [(2, 3, 5, 20), (2, 3, 20, 6)]),
    "matmul of two vectors": (torch.matmul, [(60,), (60,)]),
    "einsum": (lambda a, b: torch.einsum("bid,bjd->bij", a, b), [(2, 5, 30), (2, 4, 30)]),
    "conv1d": (conv(F.conv1d, padding=1), [(2, 4, 12), (6, 4, 3), (6,)]),
    "conv2d": (conv(F.conv2d, stride=2), [(2, 3, 9, 9), (4, 3, 3, 3), (4,)]),
    "conv2d grouped": (conv(F.conv2d, groups=2), [(2, 4, 6, 6), (6, 2, 3, 3), (6,)]),
    "conv2d of each channel": (conv(F.conv2d, groups=4, padding=1), [(2, 4, 6, 6), (4, 1, 3, 3), (4,)]),
    "conv2d dilated": (conv(F.conv2d, dilation=2), [(2, 3, 8, 8), (4, 3, 3, 3), (4,)]),
    "conv3d": (conv(F.conv3d), [(1, 2, 4, 5, 5), (3, 2, 2, 3, 3), (3,)]),
    "conv_transpose1d": (conv(F.conv_transpose1d, stride=2), [(2, 4, 6), (4, 3, 3), (3,)]),
    "conv_transpose2d": (conv(F.conv_transpose2d, groups=2), [(2, 4, 5, 5), (4, 3, 3, 3), (6,)]),
    "conv_transpose3d": (conv(F.conv_transpose3d), [(1, 2, 3, 3, 3), (2, 3, 2, 2, 2), (3,)]),
    "conv2d without bias": (F.conv2d, [(2, 3, 6, 6), (4, 3, 3, 3)]),
}


def with_gradients(function: Function, arguments: list[Tensor], weights: Tensor | None) -> list[Tensor]:
    """Returns the result and the gradients of all arguments."""
    leaves = [a.detach().clone().requires_grad_() for a in arguments]
    result = function(*leaves)
    result.backward(torch.ones_like(result) if weights is None else weights.to(result.dtype))
    gradients = [leaf.grad for leaf in leaves]
    return [result.detach(), *(g for g in gradients if g is not None)]


def assert_rounded_once(got: Tensor, exact: Tensor, magnitude: Tensor, terms: int) -> None:
    """`got` lies between the roundings of the exact value less and plus what float32 sums may be off."""
    error = magnitude * terms * 2.0**-23
    low, high = ((exact + sign * error).to(torch.float32).to(got.dtype).double() for sign in (-1, 1))
    assert bool(((low <= got.double()) & (got.double() <= high)).all())


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_sums_in_float32_and_one_rounding_forward_and_backward(
    name: str, dtype: torch.dtype, units: MatrixUnits
) -> None:
    function, shapes = CASES[name]
    torch.manual_seed(0)
    arguments = [torch.randn(shape).to(dtype) for shape in shapes]
    wide = [a.double() for a in arguments]
    weights = torch.randn(function(*wide).shape).to(dtype)

    got = with_gradients(function, arguments, weights)
    exact = with_gradients(function, wide, weights)
    magnitudes = with_gradients(function, [a.abs() for a in wide], weights.abs())
    assert len(got) == len(arguments) + 1
    for g, e, m in zip(got, exact, magnitudes, strict=True):
        assert g.dtype is dtype
        assert_rounded_once(g, e, m, terms=200)


#: Their gradients are products of single numbers, which element-wise operators compute.
OUTER = {"dot", "vdot", "matmul of two vectors"}


@pytest.mark.parametrize("name", CASES)
def test_both_passes_reach_the_kernels(name: str, units: MatrixUnits, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own kernels give nearly the same values, slowly."""
    calls: list[torch.dtype] = []
    compute = product_kernels._in_float32

    def counted(redispatch: Any, keys: Any, dtype: torch.dtype, *rest: Any) -> Any:
        calls.append(dtype)
        return compute(redispatch, keys, dtype, *rest)

    monkeypatch.setattr(product_kernels, "_in_float32", counted)
    function, shapes = CASES[name]
    leaves = [torch.ones(shape, dtype=torch.float16, requires_grad=True) for shape in shapes]
    result = function(*leaves)
    forward = len(calls)
    result.sum().backward()
    assert forward == 1
    assert (len(calls) > forward) == (name not in OUTER)
    assert set(calls) == {torch.float16}


@pytest.mark.parametrize("name", ["mm", "linear", "bmm", "conv2d", "conv_transpose2d", "mv", "dot", "baddbmm"])
def test_too_large_becomes_infinity(name: str, units: MatrixUnits) -> None:
    function, shapes = CASES[name]
    arguments = [torch.full(shape, 240.0, dtype=torch.float16) for shape in shapes]
    got = with_gradients(function, arguments, torch.full((), 60000.0).expand(function(*arguments).shape))
    assert bool(torch.isinf(got[0]).all())
    assert all(g.isinf().any() and not g.isnan().any() for g in got[-2:])


def test_sums_of_products_larger_than_float16_cancel(units: MatrixUnits) -> None:
    a = torch.tensor([[60000.0, 60000.0, 1.0]], dtype=torch.float16)
    b = torch.tensor([[60000.0], [-60000.0], [3.0]], dtype=torch.float16)
    assert (a @ b).item() == 3.0


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_numbers_below_the_smallest_normal_are_kept(dtype: torch.dtype, units: MatrixUnits) -> None:
    tiny = torch.finfo(dtype).smallest_normal / 4
    a = torch.full((4, 4), tiny, dtype=dtype)
    one = torch.eye(4, dtype=dtype)
    assert (a @ one).unique().tolist() == [tiny]
    assert F.conv1d(a[None], one[:, :, None]).unique().tolist() == [tiny]


@given(st.lists(st.integers(0, 2**16 - 1), min_size=24, max_size=24))
def test_any_float16_matrices(bits: list[int]) -> None:
    """Zeros, subnormals, infinities and NaNs among them."""
    values = torch.from_numpy(np.array(bits, dtype=np.uint16).view(np.float16))
    a, b = values[:12].view(3, 4), values[12:].view(4, 3)
    with MatrixUnits([torch.float16]):
        got = a @ b
    exact = a.double() @ b.double()
    special = ~torch.isfinite(exact)
    assert torch.equal(got[special].nan_to_num(nan=1.5), exact[special].half().nan_to_num(nan=1.5))
    magnitude = a.double().abs() @ b.double().abs()
    assert_rounded_once(got[~special], exact[~special], magnitude[~special], terms=8)


class TestAttention:
    def arguments(self, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(2, 3, 10, 8).to(dtype) for _ in range(3)]

    @pytest.mark.parametrize("dtype", LOW, ids=str)
    @pytest.mark.parametrize("kind", ["plain", "causal", "additive mask", "boolean mask", "wide", "fewer heads"])
    def test_near_float64_forward_and_backward(self, kind: str, dtype: torch.dtype, units: MatrixUnits) -> None:
        mask = torch.randn(10, 10).to(dtype)

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if kind == "additive mask":
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))
            if kind == "boolean mask":
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask > -1)
            if kind == "fewer heads":
                return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
            scale = 4.0 if kind == "wide" else None
            return F.scaled_dot_product_attention(q, k, v, is_causal=kind == "causal", scale=scale)

        arguments = self.arguments(dtype)
        got = with_gradients(attention, arguments, None)
        exact = with_gradients(attention, [a.double() for a in arguments], None)
        one_rounding = torch.finfo(dtype).eps / 2
        for g, e in zip(got, exact, strict=True):
            assert g.dtype is dtype
            # Gradients also see the forward's result, which was rounded already.
            torch.testing.assert_close(
                g.double(), e, rtol=2 * one_rounding, atol=4 * one_rounding * e.abs().max().item()
            )

    def test_the_forward_is_the_float32_kernel_rounded_once(self, units: MatrixUnits) -> None:
        q, k, v = self.arguments(torch.float16)
        expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True).half()
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, is_causal=True), expected)

    def test_scores_beyond_float16_do_not_overflow(self, units: MatrixUnits) -> None:
        """A fused kernel keeps them in float32; written as a product of its own, they would be infinite."""
        q = torch.full((1, 1, 4, 64), 100.0, dtype=torch.float16)
        assert bool(torch.isfinite(F.scaled_dot_product_attention(q, q, q)).all())
        assert bool(torch.isinf(q @ q.mT).all())

    def test_dropout_keeps_the_dtype(self, units: MatrixUnits) -> None:
        got = with_gradients(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), self.arguments(torch.float16), None
        )
        assert [g.dtype for g in got] == [torch.float16] * 4


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("softmax", [torch.softmax, torch.log_softmax])
def test_softmax_in_16_bits_is_rounded_once(
    softmax: Callable[..., Tensor], dtype: torch.dtype, units: MatrixUnits
) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(40, 30).to(dtype) * 4, torch.randn(40, 30).to(dtype)
    got = with_gradients(lambda v: softmax(v, -1), [x], weights)

    wide = softmax(x.float(), -1)
    assert torch.equal(got[0], wide.to(dtype))
    # The backward is given the result as it was rounded.
    name = "_softmax_backward_data" if softmax is torch.softmax else "_log_softmax_backward_data"
    backward = getattr(torch.ops.aten, name)(weights.float(), got[0].float(), -1, torch.float32)
    assert torch.equal(got[1], backward.to(dtype))


class TestForms:
    def test_in_place(self, units: MatrixUnits) -> None:
        torch.manual_seed(0)
        a, b, c = (torch.randn(2, 4, 4).half() for _ in range(3))
        assert torch.equal(a[0].clone().addmm_(b[0], c[0], alpha=2), torch.addmm(a[0], b[0], c[0], alpha=2))
        assert torch.equal(a.clone().baddbmm_(b, c, beta=0.5), torch.baddbmm(a, b, c, beta=0.5))
        assert torch.equal(a[0].clone().addbmm_(b, c), torch.addbmm(a[0], b, c))
        assert torch.equal(a[0, 0].clone().addmv_(b[0], c[0, 0]), torch.addmv(a[0, 0], b[0], c[0, 0]))

    def test_in_place_gradients(self, units: MatrixUnits) -> None:
        a, b, c = (torch.ones(3, 3, dtype=torch.float16, requires_grad=True) for _ in range(3))
        a.clone().addmm_(b, c).sum().backward()
        assert b.grad is not None
        assert b.grad.dtype is torch.float16
        assert b.grad.unique().tolist() == [3.0]

    def test_given_a_tensor_for_the_result(self, units: MatrixUnits) -> None:
        torch.manual_seed(0)
        a, b = torch.randn(4, 5).half(), torch.randn(5, 6).half()
        written = torch.empty(0, dtype=torch.float16)
        assert torch.mm(a, b, out=written) is written
        assert torch.equal(written, a @ b)
        torch.matmul(a[None], b[None], out=(batch := torch.empty(1, 4, 6, dtype=torch.float16)))
        assert torch.equal(batch[0], a @ b)
        with pytest.warns(UserWarning, match="was resized"):
            torch.mm(a, b, out=torch.empty(3, dtype=torch.float16))
        torch.addmm(written, a, b, out=(added := torch.empty(4, 6, dtype=torch.float16)))
        assert torch.equal(added, torch.addmm(written, a, b))

    def test_a_result_may_not_be_of_another_dtype(self, units: MatrixUnits) -> None:
        a = torch.ones(2, 2, dtype=torch.float16)
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(a, a, out=torch.empty(2, 2))

    def test_in_place_may_not_expand(self, units: MatrixUnits) -> None:
        a = torch.ones(3, 3, dtype=torch.float16)
        with pytest.raises(RuntimeError):
            torch.ones(3, dtype=torch.float16).addmm_(a, a)

    def test_channels_last_stays_so(self, units: MatrixUnits) -> None:
        x = torch.randn(2, 4, 6, 6).half().to(memory_format=torch.channels_last)
        w = torch.randn(8, 4, 3, 3).half().to(memory_format=torch.channels_last)
        assert F.conv2d(x, w).is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("frozen", ["input", "weight", "bias"])
    def test_a_frozen_operand_of_a_convolution_gets_no_gradient(self, frozen: str, units: MatrixUnits) -> None:
        tensors = {"input": torch.randn(1, 2, 5, 5), "weight": torch.randn(3, 2, 3, 3), "bias": torch.randn(3)}
        leaves = {n: t.half().requires_grad_(n != frozen) for n, t in tensors.items()}
        F.conv2d(leaves["input"], leaves["weight"], leaves["bias"]).sum().backward()
        assert {n for n, leaf in leaves.items() if leaf.grad is None} == {frozen}


class TestLeftToPyTorch:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64])
    def test_other_dtypes(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        a, b = (torch.randn(2, 20, 20).mul(10).to(dtype) for _ in range(2))

        def results() -> list[Tensor]:
            return [a @ b, a[0] @ b[0], a[0] @ b[0, 0], torch.addmm(a[0], b[0], b[1]), a[0].clone().addmm_(b[0], b[1])]

        expected = results()
        with MatrixUnits(LOW):
            assert all(torch.equal(x, y) for x, y in zip(results(), expected, strict=True))

    def test_mixed_dtypes_are_refused_as_ever(self, units: MatrixUnits) -> None:
        low, wide = torch.ones(2, 2, dtype=torch.float16), torch.ones(2, 2)
        for a, b in ((low, wide), (wide, low)):
            with pytest.raises(RuntimeError, match="same dtype"):
                a @ b

    def test_wrong_shapes_are_refused_as_ever(self, units: MatrixUnits) -> None:
        a = torch.ones(2, 3, dtype=torch.float16)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            a @ a

    def test_element_wise_operators_keep_16_bit_arithmetic(self, units: MatrixUnits) -> None:
        x = torch.full((3,), 60000.0, dtype=torch.float16)
        assert bool((x * 2).isinf().all())
        assert bool((x + x).isinf().all())

    def test_dispatch_modes_see_the_products_of_the_model(self, units: MatrixUnits) -> None:
        """So that counting operations, or watching dtypes, finds a rehearsal as it finds a GPU."""
        seen: list[tuple[Any, torch.dtype]] = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append((func, args[0].dtype))
                return func(*args, **(kwargs or {}))

        a = torch.ones(2, 2, dtype=torch.float16)
        with Watch():  # type: ignore[no-untyped-call]
            a @ a
        assert seen == [(torch.ops.aten.mm.default, torch.float16)]

    def test_meta_tensors_have_shapes_only(self, units: MatrixUnits) -> None:
        a = torch.ones(2, 3, dtype=torch.float16, device="meta")
        assert (a @ a.t()).shape == (2, 2)

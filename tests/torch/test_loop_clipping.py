# SPDX-License-Identifier: Apache-2.0
"""Gradients clipped once, after they were unscaled once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.torch.loop_parts import batches, loss_of, model, overflowing, prepared, same, scaled, sgd, weights
from torch import Tensor, nn

from floatwise.errors import BadInputError
from floatwise.torch.clipping import clip_by_norm, clip_by_value, gradient_norm

ORDERS = (1.0, 2.0, 3.0, math.inf)


def with_gradients(*gradients: Tensor) -> list[Tensor]:
    parameters: list[Tensor] = [nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


def gradients_of(parameters: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


class TestNorm:
    @pytest.mark.parametrize("order", ORDERS)
    @given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5), limit=st.floats(1e-3, 1e3))
    def test_float32_is_as_torch_clips_bit_for_bit(self, order: float, sizes: list[int], limit: float) -> None:
        if order == math.inf and 0 in sizes:
            return  # an empty tensor has no largest element
        torch.manual_seed(0)
        gradients = [torch.randn(size) * 10 for size in sizes]
        theirs, ours = with_gradients(*gradients), with_gradients(*gradients)
        norm = nn.utils.clip_grad_norm_(theirs, limit, order)
        assert clip_by_norm(ours, limit, order) == norm.item()
        assert same(gradients_of(ours), gradients_of(theirs))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("order", ORDERS)
    def test_sixteen_bits_have_a_float32_norm(self, dtype: torch.dtype, order: float) -> None:
        values = torch.full((3,), 40000.0, dtype=dtype)
        ours = gradient_norm(with_gradients(values, values), order)
        exact = torch.linalg.vector_norm(torch.cat([values, values]).double(), order)
        assert ours.dtype is torch.float32
        assert ours.item() == pytest.approx(exact.item(), rel=1e-6)

    def test_stock_the_norm_of_float16_overflows(self) -> None:
        values = torch.full((4,), 40000.0, dtype=torch.float16)
        assert nn.utils.get_total_norm([values]).isinf()
        assert gradient_norm(with_gradients(values)).item() == 80000.0

    def test_formats_beside_each_other(self) -> None:
        gradients = [torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.bfloat16), torch.tensor([12.0]).double()]
        parameters = with_gradients(*gradients)
        assert clip_by_norm(parameters, 1.3) == pytest.approx(13.0, rel=1e-6)
        for clipped, before in zip(gradients_of(parameters), gradients, strict=True):
            assert clipped.dtype is before.dtype
            torch.testing.assert_close(clipped, before / 10, rtol=4e-3, atol=0.0)

    def test_an_index_that_occurs_twice_counts_once(self) -> None:
        embedding = nn.Embedding(4, 1, sparse=True)
        embedding(torch.tensor([1, 1, 2])).sum().backward()
        assert clip_by_norm([embedding.weight], math.sqrt(5.0) / 2) == pytest.approx(math.sqrt(5.0))
        assert embedding.weight.grad is not None
        assert embedding.weight.grad.to_dense().flatten().tolist() == pytest.approx([0.0, 1.0, 0.5, 0.0], abs=1e-6)
        clip_by_value([embedding.weight], 0.75)
        assert embedding.weight.grad.to_dense().flatten().tolist() == pytest.approx([0.0, 0.75, 0.5, 0.0], abs=1e-6)

    @pytest.mark.parametrize("bad", [math.inf, math.nan])
    def test_what_is_not_finite_clips_nothing(self, bad: float) -> None:
        parameters = with_gradients(torch.tensor([bad, 1.0]))
        norm = clip_by_norm(parameters, 0.5)
        assert not math.isfinite(norm)
        assert gradients_of(parameters)[0][1] == 1.0

    def test_no_gradients_have_norm_zero(self) -> None:
        assert clip_by_norm([nn.Parameter(torch.ones(2))], 1.0) == 0.0


class TestStep:
    @pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed"])
    @pytest.mark.parametrize(("order", "norm"), [(1.0, 7.0), (2.0, 5.0), (math.inf, 4.0)])
    def test_the_order_of_the_norm(self, name: str, order: float, norm: float) -> None:
        net = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(net.weight)
        with prepared(net, sgd(net, lr=1.0), name) as precision:
            precision.backward((net.weight * torch.tensor([3.0, -4.0])).sum())
            assert precision.step(clip_norm=norm / 2, norm_type=order).grad_norm == norm
        assert net.weight[0].tolist() == pytest.approx([-1.5, 2.0], abs=1e-5)

    def test_an_infinite_limit_only_measures(self) -> None:
        measured, plain = model(), model()
        for net, limit in ((measured, math.inf), (plain, None)):
            with prepared(net, sgd(net), "fp32") as precision:
                precision.backward(loss_of(net, batches(1)[0]))
                info = precision.step(clip_norm=limit)
            assert (info.grad_norm is None) == (limit is None)
        assert same(weights(measured), weights(plain))

    @pytest.mark.parametrize("name", ["fp32", "fp16-mixed"])
    def test_both_limits_in_the_order_the_caller_chooses(self, name: str) -> None:
        net = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(net.weight)
        with prepared(net, sgd(net, lr=1.0), name) as precision:
            precision.backward((net.weight * torch.tensor([3.0, -40.0])).sum())
            with pytest.raises(BadInputError, match=r"call precision\.unscale\(\) before step\(\)"):
                precision.step(clip_norm=1.0, clip_value=4.0)
            precision.unscale()
            nn.utils.clip_grad_value_(net.parameters(), 4.0)
            assert precision.step(clip_norm=2.5).grad_norm == 5.0
        assert net.weight[0].tolist() == pytest.approx([-1.5, 2.0], abs=1e-5)

    @pytest.mark.parametrize("norm_type", [0.0, -1.0, math.nan])
    def test_an_order_that_is_none(self, norm_type: float) -> None:
        net = model()
        with prepared(net, sgd(net), "fp32") as precision, pytest.raises(BadInputError, match="got norm_type"):
            precision.step(clip_norm=1.0, norm_type=norm_type)


class TestUnscale:
    def test_gradients_have_their_true_size(self) -> None:
        net, plain = model(), model()
        loss_of(plain, batches(1)[0]).backward()
        with prepared(net, sgd(net), scaled(1024.0)) as precision:
            precision.backward(loss_of(net, batches(1)[0]))
            scaled_gradients = [g.clone() for g in gradients_of(list(net.parameters()))]
            precision.unscale()
            precision.unscale()
            unscaled = gradients_of(list(net.parameters()))
            assert same(unscaled, gradients_of(list(plain.parameters())))
            assert same(scaled_gradients, [g * 1024 for g in unscaled])
            assert precision.step().stepped

    def test_a_backward_after_it_is_refused_until_the_batch_is_done(self) -> None:
        net = model()
        with prepared(net, sgd(net), scaled()) as precision:
            precision.backward(loss_of(net, batches(1)[0]))
            precision.unscale()
            with pytest.raises(BadInputError, match="step\\(\\), or precision\\.zero_grad\\(\\) to drop the batch"):
                precision.backward(loss_of(net, batches(1)[0]))
            precision.zero_grad()
            precision.backward(loss_of(net, batches(1)[0]))
            assert precision.step().stepped

    @pytest.mark.parametrize("dropped_by", ["precision", "optimizer"])
    def test_a_dropped_overflow_lowers_the_scale_and_leaves_nothing_else(self, dropped_by: str) -> None:
        plain, net = model(), model()
        plain_optimizer, optimizer = sgd(plain), sgd(net)
        loss_of(plain, batches(1)[0]).backward()
        plain_optimizer.step()
        with prepared(net, optimizer, scaled()) as precision:
            precision.backward(overflowing(net))
            precision.unscale()
            (precision if dropped_by == "precision" else optimizer).zero_grad()
            precision.backward(loss_of(net, batches(1)[0]))
            info = precision.step()
        assert (info.stepped, info.loss_scale) == (True, 32768.0)
        assert same(weights(net), weights(plain))

    def test_without_a_loss_scale_it_changes_nothing(self) -> None:
        net = model()
        with prepared(net, sgd(net), "bf16-mixed") as precision:
            precision.backward(loss_of(net, batches(1)[0]))
            before = [g.clone() for g in gradients_of(list(net.parameters()))]
            precision.unscale()
            assert same(before, gradients_of(list(net.parameters())))

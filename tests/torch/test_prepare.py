# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.torch.loop_parts import OPTIMIZERS, batches, loss_of, model, overflowing, same, weights
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional

import floatwise.torch as runtime
from floatwise.errors import BadInputError, NonFiniteGradientsError
from floatwise.plan import LossScale, ModulePolicy, Policy, recipe
from floatwise.torch import Precision, StepInfo

Prepare = Callable[..., Precision]


@pytest.fixture
def prepare() -> Iterator[Prepare]:
    made: list[Precision] = []

    def make(*args: Any) -> Precision:
        made.append(runtime.prepare(*args))
        return made[-1]

    yield make
    for precision in made:
        precision.close()


def train(precision: Precision, net: nn.Module, data: list[tuple[Tensor, Tensor]], **limits: Any) -> list[StepInfo]:
    infos = []
    for batch in data:
        with precision.forward():
            loss = loss_of(net, batch)
        precision.backward(loss)
        infos.append(precision.step(**limits))
        precision.zero_grad()
    return infos


class TestParity:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("clip_norm", [None, 0.5])
    def test_bf16_is_a_hand_written_loop_bit_for_bit(
        self, kind: str, clip_norm: float | None, prepare: Prepare
    ) -> None:
        by_hand = model()
        optimizer = OPTIMIZERS[kind](by_hand)
        norms = []
        for batch in batches(6):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(by_hand, batch)
            loss.backward()
            if clip_norm:
                norms.append(float(nn.utils.clip_grad_norm_(by_hand.parameters(), clip_norm)))
            optimizer.step()
            optimizer.zero_grad()
        ours = model()
        precision = prepare(ours, OPTIMIZERS[kind](ours), "bf16-mixed")
        infos = train(precision, ours, batches(6), **({"clip_norm": clip_norm} if clip_norm else {}))
        assert same(weights(ours), weights(by_hand))
        assert [i.grad_norm for i in infos] == (norms if clip_norm else [None] * 6)
        assert all(i.stepped and not i.skipped and i.loss_scale == 1.0 for i in infos)

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("clip_norm", [None, 0.5])
    def test_fp16_is_grad_scaler_step_by_step(self, kind: str, clip_norm: float | None, prepare: Prepare) -> None:
        # Overflows at first, then grows.
        settings = LossScale(initial_scale=2.0**22, growth_interval=3, growth="fixed")
        by_hand = model()
        optimizer = OPTIMIZERS[kind](by_hand)
        scaler = GradScaler("cpu", init_scale=settings.initial_scale, growth_interval=3)
        scales, norms = [], []
        for batch in batches(12):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_of(by_hand, batch)
            scaler.scale(loss).backward()
            if clip_norm:
                scaler.unscale_(optimizer)
                norms.append(float(nn.utils.clip_grad_norm_(by_hand.parameters(), clip_norm)))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        ours = model()
        precision = prepare(ours, OPTIMIZERS[kind](ours), recipe("fp16-mixed", loss_scale=settings))
        infos = train(precision, ours, batches(12), **({"clip_norm": clip_norm} if clip_norm else {}))
        assert [i.loss_scale for i in infos] == scales
        assert same(weights(ours), weights(by_hand))
        assert {i.stepped for i in infos} == {True, False}
        for info, norm in zip(infos, norms, strict=False):
            assert info.grad_norm == norm or not math.isfinite(norm)

    @pytest.mark.parametrize("name", ["fp32", "tf32"])
    def test_float32_plans_are_plain_training(self, name: str, prepare: Prepare) -> None:
        by_hand = model()
        optimizer = OPTIMIZERS["AdamW"](by_hand)
        for batch in batches(4):
            loss_of(by_hand, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        ours = model()
        train(prepare(ours, OPTIMIZERS["AdamW"](ours), name), ours, batches(4))
        assert same(weights(ours), weights(by_hand))

    def test_accumulated_gradients_are_those_of_one_batch(self, prepare: Prepare) -> None:
        results = []
        for parts in (1, 4):
            net = model()
            precision = prepare(net, OPTIMIZERS["SGD"](net), "fp16-mixed")
            inputs, targets = batches(1)[0]
            for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
                with precision.forward():
                    loss = functional.cross_entropy(net(x), y) / parts
                precision.backward(loss)
            info = precision.step(clip_norm=10.0)
            assert info.grad_norm is not None
            results.append((info.grad_norm, weights(net)))
        assert results[0][0] == pytest.approx(results[1][0], rel=2e-3)
        for a, b in zip(results[0][1], results[1][1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


class TestForward:
    def test_outputs_are_not_cast(self, prepare: Prepare) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS["SGD"](net), "bf16-mixed")
        with precision.forward():
            assert net(batches(1)[0][0]).dtype is torch.bfloat16

    def test_losses_run_in_float32(self, prepare: Prepare) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS["SGD"](net), "bf16-mixed")
        x, y = batches(1)[0]
        with precision.forward():
            logits = net(x)
            by_parts = -logits.log_softmax(-1)[range(8), y].mean()
            loss = functional.cross_entropy(logits, y)
        assert by_parts.dtype is loss.dtype is torch.float32
        assert torch.equal(loss, functional.cross_entropy(logits.float(), y))

    def test_islands_are_applied_until_close(self) -> None:
        net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        island = ModulePolicy(module="1", policy=Policy(compute_dtype="float32"))
        precision = runtime.prepare(net, OPTIMIZERS["SGD"](net), recipe("bf16-mixed", modules=(island,)))
        x = torch.randn(2, 32)
        with precision.forward():
            assert net(x).dtype is torch.float32
        precision.close()
        precision.close()
        with precision.forward():
            assert net(x).dtype is torch.bfloat16

    def test_an_interrupt_leaves_nothing_behind(self, prepare: Prepare) -> None:
        class Interrupted(nn.Linear):
            stop = True

            def forward(self, x: Tensor) -> Tensor:
                if self.stop:
                    raise KeyboardInterrupt
                return super().forward(x)

        first = Interrupted(32, 32)
        net = nn.Sequential(first, nn.Linear(32, 32))
        modules = (ModulePolicy(module="0", policy=Policy(compute_dtype="float32", output_dtype="bfloat16")),)
        precision = prepare(net, OPTIMIZERS["SGD"](net), recipe("bf16-mixed", modules=modules))
        x = torch.randn(2, 32)
        with pytest.raises(KeyboardInterrupt), precision.forward():
            net(x)
        first.stop = False
        assert net(x).dtype is torch.float32
        with precision.forward():
            assert net(x).dtype is torch.bfloat16

    def test_backward_within_forward_does_not_autocast(self, prepare: Prepare) -> None:
        seen: list[bool] = []

        class Watched(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                seen.append(torch.is_autocast_enabled("cpu"))
                return grad

        net = model()
        precision = prepare(net, OPTIMIZERS["SGD"](net), "bf16-mixed")
        with precision.forward():
            precision.backward(Watched.apply(net(batches(1)[0][0])).float().sum())  # type: ignore[no-untyped-call]
            assert torch.is_autocast_enabled("cpu")
        assert seen == [False]


class TestStep:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("limits", [{}, {"clip_norm": 1.0}, {"clip_value": 0.1}], ids=str)
    def test_an_overflow_is_skipped_and_the_scale_halves(
        self, kind: str, limits: dict[str, Any], prepare: Prepare
    ) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS[kind](net), "fp16-mixed")
        train(precision, net, batches(2))
        before = weights(net)
        precision.backward(overflowing(net))
        info = precision.step(**limits)
        assert (info.stepped, info.skipped, info.loss_scale) == (False, True, 32768.0)
        assert same(weights(net), before)
        precision.optimizers[0].zero_grad()
        assert train(precision, net, batches(1))[0].stepped
        assert not same(weights(net), before)

    def test_overflows_without_end_stop_at_the_floor_with_an_alarm(self, prepare: Prepare) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS["AdamW"](net), "fp16-mixed")
        before = weights(net)

        def skip(times: int) -> None:
            for _ in range(times):
                precision.zero_grad()
                precision.backward(overflowing(net))
                assert precision.step().skipped

        skip(16)
        with pytest.warns(UserWarning, match=r"loss scale 1, which falls no further.*'?0\.weight"):
            skip(8)
        with pytest.raises(NonFiniteGradientsError, match=r"0\.weight \(Linear"):
            skip(1)
        assert precision.scaler.get_scale() == 1.0
        assert precision.scaler.skipped_steps == 25
        assert same(weights(net), before)
        precision.zero_grad()
        assert train(precision, net, batches(1))[0].stepped
        assert all(w.isfinite().all() for w in weights(net))

    @pytest.mark.parametrize("name", ["fp32", "bf16-mixed"])
    def test_a_norm_that_is_not_finite_skips_without_a_scaler_too(self, name: str, prepare: Prepare) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS["AdamW"](net), name)
        before = weights(net)
        precision.backward(overflowing(net))
        info = precision.step(clip_norm=1.0)
        assert (info.stepped, info.skipped) == (False, True)
        assert same(weights(net), before)

    @pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed"])
    def test_the_norm_is_the_unscaled_one_before_clipping(self, name: str, prepare: Prepare) -> None:
        net = nn.Linear(1, 1, bias=False)
        precision = prepare(net, torch.optim.SGD(net.parameters(), lr=1.0), name)
        nn.init.zeros_(net.weight)
        precision.backward((net.weight * 3.0).sum())
        info = precision.step(clip_norm=0.5)
        assert info.grad_norm == 3.0
        assert net.weight.item() == pytest.approx(-0.5, abs=1e-5)

    def test_clipping_by_value(self, prepare: Prepare) -> None:
        net = nn.Linear(2, 1, bias=False)
        precision = prepare(net, torch.optim.SGD(net.parameters(), lr=1.0), "fp16-mixed")
        nn.init.zeros_(net.weight)
        precision.backward((net.weight * torch.tensor([3.0, -0.25])).sum())
        assert precision.step(clip_value=0.5).grad_norm is None
        assert net.weight.tolist() == [[-0.5, 0.25]]

    @pytest.mark.parametrize("name", ["bf16-mixed", "fp16-mixed"])
    def test_several_optimizers_step_or_skip_together(self, name: str, prepare: Prepare) -> None:
        net = model()
        first, second = (torch.optim.SGD(net.get_submodule(n).parameters(), lr=0.1) for n in "02")
        precision = prepare(net, [first, second], name)
        start = weights(net)
        assert train(precision, net, batches(1), clip_norm=1.0)[0].stepped
        moved = weights(net)
        assert not any(torch.equal(a, b) for a, b in zip(start, moved, strict=True))
        precision.backward(loss_of(net, batches(1)[0]) + overflowing(net))
        assert precision.step(clip_norm=1.0).skipped
        assert same(weights(net), moved)

    @pytest.mark.parametrize("name", ["fp32", "fp16-mixed"])
    def test_an_optimizer_without_gradients_waits(self, name: str, prepare: Prepare) -> None:
        net = model()
        first, second = (torch.optim.SGD(net.get_submodule(n).parameters(), lr=0.1) for n in "02")
        precision = prepare(net, [first, second], name)
        start = weights(net)
        precision.backward(net.get_parameter("0.weight").sum())
        assert precision.step().stepped
        assert [torch.equal(a, b) for a, b in zip(start, weights(net), strict=True)] == [
            False,
            True,
            True,
            True,
        ]

    def test_without_any_gradient_nothing_happens(self, prepare: Prepare) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS["SGD"](net), "fp16-mixed")
        assert precision.step() == StepInfo(stepped=False, skipped=False, loss_scale=65536.0)

    def test_gradients_of_an_unscaled_loss_are_refused(self, prepare: Prepare) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS["SGD"](net), "fp16-mixed")
        loss_of(net, batches(1)[0]).backward()
        with pytest.raises(BadInputError, match=r"precision\.backward\(loss\)"):
            precision.step()


class TestState:
    def test_training_goes_on_from_a_saved_state(self, prepare: Prepare) -> None:
        plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=2.0**24, growth_interval=3))
        through = model()
        precision = prepare(through, OPTIMIZERS["AdamW"](through), plan)
        train(precision, through, batches(6))
        state = [precision.state_dict(), precision.optimizers[0].state_dict(), through.state_dict()]
        resumed = model()
        resumed.load_state_dict(state[2])
        again = prepare(resumed, OPTIMIZERS["AdamW"](resumed), plan)
        again.load_state_dict(state[0])
        again.optimizers[0].load_state_dict(state[1])
        assert again.state_dict() == precision.state_dict()
        assert train(again, resumed, batches(6)) == train(precision, through, batches(6))
        assert same(weights(resumed), weights(through))

    def test_a_state_without_loss_scaling_leaves_the_plans_scale(self, prepare: Prepare) -> None:
        first, second = model(), model()
        state = prepare(first, OPTIMIZERS["SGD"](first), "bf16-mixed").state_dict()
        precision = prepare(second, OPTIMIZERS["SGD"](second), "fp16-mixed")
        precision.load_state_dict(state)
        assert precision.scaler.get_scale() == 65536.0

    def test_another_state_is_refused(self, prepare: Prepare) -> None:
        net = model()
        precision = prepare(net, OPTIMIZERS["SGD"](net), "fp16-mixed")
        with pytest.raises(BadInputError, match=r"precision\.scaler\.load_state_dict"):
            precision.load_state_dict(GradScaler("cpu").state_dict())


def test_frozen_weights_may_be_16_bit(prepare: Prepare) -> None:
    net = model()
    net.get_submodule("0").bfloat16().requires_grad_(False)
    optimizer = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.1)
    assert all(info.stepped for info in train(prepare(net, optimizer, "bf16-mixed"), net, batches(2)))

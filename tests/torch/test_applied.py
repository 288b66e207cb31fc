# SPDX-License-Identifier: Apache-2.0
"""A plan applied to training code that knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, recipe
from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch.script.applied import AppliedPlan

BF16 = recipe("bf16-mixed")


@contextmanager
def under(plan: Plan) -> Iterator[AppliedPlan]:
    applied = AppliedPlan(plan)
    with Tap([applied]) as tap:
        existing = ExistingPrecision(tap, compute_dtype=applied.compute_dtype)
        existing.install()
        applied.install(tap, existing)
        yield applied


def make_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.0), nn.Linear(64, 8))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 32, generator=generator), torch.randint(0, 8, (16,), generator=generator))
        for _ in range(count)
    ]


def train(model: nn.Module, region: Callable[[], Any] | None = None, accumulate: int = 1) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for step, (inputs, labels) in enumerate(batches(12)):
        if region is None:
            loss = F.cross_entropy(model(inputs), labels) / accumulate
        else:
            with region():
                loss = F.cross_entropy(model(inputs), labels) / accumulate
        loss.backward()
        losses.append(loss.item())
        if (step + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("accumulate", [1, 3])
def test_bit_identical_to_autocast_by_hand(accumulate: int) -> None:
    by_hand, applied = make_model(), make_model()
    expected = train(by_hand, lambda: torch.autocast("cpu", torch.bfloat16), accumulate)
    with under(BF16):
        assert train(applied, accumulate=accumulate) == expected
    for a, b in zip(by_hand.parameters(), applied.parameters(), strict=True):
        assert torch.equal(a, b)


def test_float32_plan_changes_nothing() -> None:
    expected = train(make_model())
    with under(recipe("fp32")):
        assert train(make_model()) == expected


def test_products_are_16_bit_inside_and_outputs_float32_outside() -> None:
    model, seen = make_model(), []
    model[0].register_forward_hook(lambda m, a, output: seen.append(output.dtype))
    with under(BF16):
        output = model(batches(1)[0][0])
        assert seen == [torch.bfloat16]
        assert output.dtype is torch.float32
        with torch.no_grad():
            assert model(batches(1)[0][0]).numpy().dtype.name == "float32"


def test_autocast_is_off_in_backward_and_update_and_after_evaluation() -> None:
    model, states = make_model(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: states.append(torch.is_autocast_enabled("cpu")))
    with under(BF16):
        loss = F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1])
        assert not torch.is_autocast_enabled("cpu")  # what the script computes beside its model is not rounded
        loss.register_hook(lambda grad: states.append(torch.is_autocast_enabled("cpu")))
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model(batches(1)[0][0])
        states.append(torch.is_autocast_enabled("cpu"))
    assert states == [False, False, False]


def test_autocast_is_off_after_an_exception_in_forward() -> None:
    with under(BF16):
        with pytest.raises(RuntimeError):
            make_model()(torch.randn(3, 5))
        assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.nll_loss(F.log_softmax(out, 1), y),
        lambda out, y: -(F.one_hot(y, 8) * torch.log(out.softmax(1) + 1e-9)).sum(1).mean(),
        lambda out, y: F.binary_cross_entropy(out.sigmoid(), F.one_hot(y, 8).float()),
        lambda out, y: F.mse_loss(out, F.one_hot(y, 8).float()),
        lambda out, y: (out.logsumexp(1) - out.gather(1, y[:, None])[:, 0]).mean(),
        lambda out, y: (out - F.one_hot(y, 8)).norm(),
    ],
)
def test_losses_run_in_float32_as_on_cuda(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, (inputs, labels) = make_model(), batches(1)[0]
    with under(BF16):
        output = model(inputs)
        value = loss(output, labels)
        assert value.dtype is torch.float32
        torch.testing.assert_close(value, loss(output.detach().float(), labels), rtol=1e-5, atol=1e-6)
        value.backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


class LossInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 8)
        self.seen: list[torch.dtype] = []

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layer(inputs)
        log_probabilities = F.log_softmax(logits, 1)
        self.seen += [logits.dtype, log_probabilities.dtype]
        return {"loss": F.nll_loss(log_probabilities, labels), "logits": logits}


def test_a_loss_inside_the_model_runs_in_float32() -> None:
    model = LossInside()
    with under(BF16):
        output = model(*batches(1)[0])
        output["loss"].backward()
    assert model.seen == [torch.bfloat16, torch.float32]
    assert {key: value.dtype for key, value in output.items()} == {
        "loss": torch.float32,
        "logits": torch.float32,
    }


class ProbabilityLossInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 8)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = nn.BCELoss()(self.layer(inputs).sigmoid(), targets)
        return loss


def test_a_loss_on_probabilities_inside_the_model_runs_in_float32() -> None:
    model, (inputs, labels) = ProbabilityLossInside(), batches(1)[0]
    original = F.binary_cross_entropy
    with under(BF16):
        loss = model(inputs, F.one_hot(labels, 8).float())
        assert loss.dtype is torch.float32
        loss.backward()
    assert F.binary_cross_entropy is original


def island(module: str) -> ModulePolicy:
    return ModulePolicy(module=module, policy=Policy(compute_dtype="float32"))


def test_islands_compute_in_float32() -> None:
    model, seen = make_model(), []
    for index in (0, 3):
        model[index].register_forward_hook(lambda m, a, output: seen.append(output.dtype))
    with under(recipe("bf16-mixed", modules=(island("3"), island("nowhere")))) as applied:
        model(batches(1)[0][0])
    assert seen == [torch.bfloat16, torch.float32]
    assert applied.unmatched == ["nowhere"]


def float16(**changes: Any) -> Plan:
    return recipe("fp16-mixed", loss_scale=LossScale(**{"initial_scale": 1024.0, **changes}))


def test_gradients_are_unscaled_when_the_script_sees_them() -> None:
    plain, scaled = make_model(), make_model()
    inputs, labels = batches(1)[0]
    F.cross_entropy(plain(inputs), labels).backward()
    with under(float16()):
        F.cross_entropy(scaled(inputs), labels).backward()
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0.05, atol=2e-3)


def test_overflow_skips_the_step_and_backs_off() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    with under(float16()) as applied:
        inputs, labels = batches(1)[0]
        (F.cross_entropy(model(inputs), labels) * 1e9).backward()
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert not optimizer.state
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        assert applied.scaling is not None
        scaler = applied.scaling.scaler
        assert scaler is not None
        assert (scaler.skipped_steps, scaler.get_scale()) == (1, 512.0)
    assert not torch.equal(before[0], next(model.parameters()))


def test_overflow_in_an_update_by_hand_changes_nothing() -> None:
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    with under(float16()):
        inputs, labels = batches(1)[0]
        (F.cross_entropy(model(inputs), labels) * 1e9).backward()
        for p in model.parameters():
            assert p.grad is not None
            p.data.add_(p.grad, alpha=-0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_closures_are_evaluated_again_until_finite() -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    inputs, labels = batches(1)[0]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    with under(float16(initial_scale=2.0**24)) as applied:
        optimizer.step(closure)
        assert applied.scaling is not None
        assert applied.scaling.scaler is not None
        assert applied.scaling.scaler.get_scale() < 2.0**24
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_script_without_modules_is_under_the_plan_from_its_second_step() -> None:
    torch.manual_seed(0)
    weight, seen = torch.randn(8, 4, requires_grad=True), []
    with under(BF16):
        for _ in range(3):
            product = torch.randn(16, 8) @ weight
            seen.append(product.dtype)
            product.float().square().mean().backward()
            with torch.no_grad():
                assert weight.grad is not None
                weight -= 0.01 * weight.grad
                weight.grad = None
    assert seen == [torch.float32, torch.bfloat16, torch.bfloat16]


def test_gradient_penalty_runs_outside_the_region() -> None:
    model, states = make_model(), []
    inputs = torch.randn(4, 32, requires_grad=True)
    with under(BF16):
        output = model(inputs).sum()
        output.register_hook(lambda grad: states.append(torch.is_autocast_enabled("cpu")))
        (grad,) = torch.autograd.grad(output, inputs, create_graph=True)
        (grad.square().sum() + output).backward()
    assert states[0] is False


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_that_came_in_16_bits_become_float32(dtype: torch.dtype) -> None:
    state = {k: v.to(dtype) for k, v in make_model().state_dict().items()}
    model = make_model()
    for name, parameter in model.named_parameters():
        parameter.data = state[name]
    inputs = torch.randn(4, 32).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with under(BF16):
        model(inputs).sum().backward()
        optimizer.step()
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_replaced_autocast_takes_the_plans_dtype_and_islands_of_the_script_stay() -> None:
    model, seen = make_model(), []
    model[0].register_forward_hook(lambda m, a, output: seen.append(output.dtype))
    with under(BF16):
        with torch.autocast("cpu", torch.float16):
            model(batches(1)[0][0])
        with torch.autocast("cpu", enabled=False):
            seen.append((torch.randn(2, 2) @ torch.randn(2, 2)).dtype)
    assert seen == [torch.bfloat16, torch.float32]


def test_the_scripts_own_region_ends_with_it() -> None:
    model, states = make_model(), []
    with under(BF16):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1])
            states.append(torch.is_autocast_enabled("cpu"))
        states.append(torch.is_autocast_enabled("cpu"))
        loss.backward()
        states.append(torch.is_autocast_enabled("cpu"))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(batches(1)[0][0])
            states.append(torch.is_autocast_enabled("cpu"))
    assert states == [True, False, False, True]


@pytest.mark.slow
def test_compiled_models_run_compiled() -> None:
    expected = train(make_model(), lambda: torch.autocast("cpu", torch.bfloat16))
    model = make_model()
    with under(BF16):
        losses = train(torch.compile(model, backend="aot_eager"))  # type: ignore[arg-type]
    assert losses == pytest.approx(expected, rel=2e-2)


def test_leaves_that_come_later_are_unscaled_too() -> None:
    model, other = make_model(), nn.Linear(8, 8)
    model[0].requires_grad_(False)
    with under(float16()):
        for step in range(6):
            if step == 4:
                model[0].requires_grad_(True)
                model.append(other)
            model.zero_grad()
            noise = torch.zeros(16, 32, requires_grad=True)
            inputs, labels = batches(1)[0]
            F.cross_entropy(model(inputs + noise), labels).backward()
    weights = [next(model.parameters()), other.weight, noise]
    for tensor in weights:
        assert tensor.grad is not None
        assert 0 < float(tensor.grad.abs().max()) < 1


def test_a_script_that_passes_over_bad_batches_by_itself_gets_a_smaller_scale() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    stepped = 0
    with under(float16(initial_scale=2.0**24)):
        for inputs, labels in batches(20):
            optimizer.zero_grad()
            (100 * F.cross_entropy(model(inputs), labels)).backward()
            if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                optimizer.step()
                stepped += 1
    assert 5 < stepped < 20


def test_the_scripts_own_hooks_see_unscaled_gradients() -> None:
    model, seen = make_model(), []
    next(model.parameters()).register_hook(lambda grad: seen.append(float(grad.abs().max())))
    with under(float16(initial_scale=2.0**14)):
        F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).backward()
    assert 0 < seen[0] < 1


def test_what_the_script_computes_beside_its_model_is_not_rounded() -> None:
    model, matrix = make_model(), torch.randn(32, 32)
    with under(BF16):
        model(batches(1)[0][0])
        assert (matrix @ matrix).dtype is torch.float32


def test_a_scaler_of_the_script_keeps_a_state_that_plain_runs_can_load() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plain = torch.amp.GradScaler("cpu")
    with under(float16(initial_scale=512.0)):
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
        scaler.load_state_dict({**scaler.state_dict(), "scale": 256.0})
        scaler.scale(F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1])).backward()
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
    plain.load_state_dict(state)
    assert plain.get_scale() == 256.0

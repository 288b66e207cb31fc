# SPDX-License-Identifier: Apache-2.0
"""Training on matrix units: what lies above them acts as on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.amp.grad_scaler import GradScaler
from torch.utils.checkpoint import checkpoint

from floatwise.plan import LossScale, Plan, recipe
from floatwise.rehearse.products import MatrixUnits
from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch.cuda_policy import CudaPolicy
from floatwise.torch.script.applied import AppliedPlan

FP16 = recipe("fp16-mixed")
EPSILON = torch.finfo(torch.float16).eps


@pytest.fixture
def units() -> Iterator[MatrixUnits]:
    with MatrixUnits([torch.float16, torch.bfloat16]) as held, CudaPolicy():
        yield held


def region(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16, enabled=enabled)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class SmallGPT(nn.Module):
    def __init__(self, vocabulary: int = 11, width: int = 16, context: int = 8) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)
        self.recompute = False

    def forward(self, indices: Tensor) -> Tensor:
        x = self.tokens(indices) + self.positions.weight
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits: Tensor = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), indices[:, 1:].flatten())


def make_gpt() -> SmallGPT:
    torch.manual_seed(0)
    return SmallGPT()


def batch(step: int) -> Tensor:
    return torch.randint(0, 11, (4, 8), generator=torch.Generator().manual_seed(step))


@contextmanager
def under(plan: Plan) -> Iterator[AppliedPlan]:
    applied = AppliedPlan(plan)
    with Tap([applied]) as tap:
        existing = ExistingPrecision(tap, compute_dtype=applied.compute_dtype)
        existing.install()
        applied.install(tap, existing)
        yield applied


def train(plan: Plan, steps: int, rehearsed: bool) -> tuple[list[float], list[tuple[int, float]], SmallGPT]:
    """Trains a small GPT under a plan; returns losses, skipped steps and scale after each step, and the model."""
    model = make_gpt()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses, scaler_states = [], []
    with under(plan) as applied, MatrixUnits([torch.float16]) if rehearsed else nullcontext():
        for step in range(steps):
            loss = model(batch(step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            scaler = applied.scaling.scaler if applied.scaling is not None else None
            assert scaler is not None
            scaler_states.append((scaler.skipped_steps, scaler.get_scale()))
    return losses, scaler_states, model


def test_a_planned_run_agrees_with_pytorchs_own_float16_kernels() -> None:
    losses, _, model = train(FP16, 5, rehearsed=True)
    expected, _, native = train(FP16, 5, rehearsed=False)
    assert losses == pytest.approx(expected, rel=4 * EPSILON)
    for a, b in zip(model.parameters(), native.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=8 * EPSILON, atol=2e-3)


def test_a_loss_scale_too_high_overflows_at_the_same_steps() -> None:
    plan = FP16.model_copy(update={"loss_scale": LossScale(initial_scale=2.0**24)})
    losses, states, _ = train(plan, 9, rehearsed=True)
    expected_losses, expected, _ = train(plan, 9, rehearsed=False)
    assert states == expected
    assert losses == pytest.approx(expected_losses, rel=4 * EPSILON)
    skipped = states[-1][0]
    assert 3 <= skipped < 8, "some steps were to overflow, and later ones not"


def gradients(model: nn.Module, loss: Callable[[], Tensor], scale: float = 1.0) -> list[Tensor]:
    model.zero_grad()
    with region():
        value = loss()
    (value * scale).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


class TestGradients:
    def test_float32_weights_get_float32_gradients_that_are_float16_numbers(self, units: MatrixUnits) -> None:
        torch.manual_seed(0)
        layer, x = nn.Linear(64, 8), torch.randn(32, 64)
        got = gradients(layer, lambda: layer(x).float().square().sum())
        for g in got:
            assert g.dtype is torch.float32
            assert torch.equal(g, g.half().float())

    def test_small_ones_vanish_without_a_loss_scale(self, units: MatrixUnits) -> None:
        torch.manual_seed(0)
        layer, x = nn.Linear(8, 8), torch.randn(4, 8)
        without = gradients(layer, lambda: layer(x).float().mean() * 2.0**-26)
        scaled = gradients(layer, lambda: layer(x).float().mean() * 2.0**-26, scale=2.0**20)
        assert all(bool((g == 0).all()) for g in without)
        assert all(bool((g != 0).any()) for g in scaled)

    def test_large_ones_overflow_and_grad_scaler_skips(self, units: MatrixUnits) -> None:
        torch.manual_seed(0)
        layer, x = nn.Linear(8, 8), torch.randn(4, 8)
        before = layer.weight.detach().clone()
        optimizer, scaler = torch.optim.SGD(layer.parameters(), 0.1), GradScaler("cpu", init_scale=2.0**20)
        with region():
            loss = layer(x).float().sum()
        scaler.scale(loss).backward()
        assert layer.weight.grad is not None
        assert not bool(layer.weight.grad.isfinite().all())
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(layer.weight, before)
        assert scaler.get_scale() == 2.0**19

    def test_checkpointing_gives_the_same_bits(self, units: MatrixUnits) -> None:
        model = make_gpt()
        plain = gradients(model, lambda: model(batch(0)))
        model.recompute = True
        again = gradients(model, lambda: model(batch(0)))
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))

    def test_of_gradients(self, units: MatrixUnits) -> None:
        x = torch.full((2, 2), 2.0, requires_grad=True)
        w = torch.eye(2, requires_grad=True)
        with region():
            y = (x @ w).float().pow(3).sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            g.float().sum().backward()
        assert w.grad is not None
        assert bool(w.grad.isfinite().all())
        assert x.grad is not None
        assert x.grad.tolist() == [[12.0, 12.0], [12.0, 12.0]]

    def test_of_a_batch_one_by_one(self, units: MatrixUnits) -> None:
        w, x = torch.randn(3, 4).half(), torch.randn(5, 4).half()
        one_by_one = torch.func.vmap(torch.func.grad(lambda v: (w @ v).float().sum()))(x)
        assert torch.equal(one_by_one, w.float().sum(0).half().expand(5, 4))


class Doubled(torch.autograd.Function):
    """Keeps the dtypes that its passes saw."""

    seen: tuple[torch.dtype, ...] = ()

    @staticmethod
    @custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(ctx: torch.autograd.function.FunctionCtx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return 2 * torch.mm(a, b)

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors  # type: ignore[attr-defined]
        left, right = 2 * torch.mm(grad, b.t()), 2 * torch.mm(a.t(), grad)
        Doubled.seen = (left.dtype, right.dtype)
        return left, right


class TestAbove:
    def test_custom_functions_multiply_in_16_bits_both_ways(self, units: MatrixUnits) -> None:
        a, b = torch.ones(2, 300, requires_grad=True), torch.ones(300, 2, requires_grad=True)
        with region():
            out = Doubled.apply(a, b)  # type: ignore[no-untyped-call]
        assert out.dtype is torch.float16
        out.sum().backward()
        assert Doubled.seen == (torch.float16, torch.float16)
        assert a.grad is not None
        assert (a.grad.dtype, a.grad.unique().tolist()) == (torch.float32, [4.0])

    def test_islands_are_float32(self, units: MatrixUnits) -> None:
        a = torch.full((2, 2), 300.0)
        with region():
            inside = a @ a
            with region(enabled=False):
                island = a @ a
        assert (inside.dtype, inside.isinf().all().item()) == (torch.float16, True)
        assert (island.dtype, island.unique().tolist()) == (torch.float32, [180000.0])

    def test_a_region_of_another_dtype_inside(self, units: MatrixUnits) -> None:
        a = torch.full((2, 2), 300.0)
        with region(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert (a @ a).dtype is torch.bfloat16
            assert (a @ a).unique().tolist() == [torch.tensor(180000.0).bfloat16().item()]

    def test_a_model_stored_in_float16(self, units: MatrixUnits) -> None:
        model = make_gpt().half()
        assert math.isfinite(model(batch(0)).item())

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile imports parts of torch that warn
    def test_compiled_code_gives_the_same_bits_whenever_it_was_compiled(self) -> None:
        torch.compiler.reset()
        a = torch.full((1, 3), 60000.0, dtype=torch.float16, requires_grad=True)
        b = torch.tensor([[1.0], [-1.0], [0.5]], dtype=torch.float16)
        compiled = torch.compile(lambda x, y: x @ y, backend="aot_eager")
        for held in (True, False, True):
            with MatrixUnits([torch.float16]) if held else nullcontext():
                result = compiled(a, b)
                assert result.item() == 30000.0
                result.sum().backward()
        assert a.grad is not None
        assert torch.equal(a.grad, 3 * b.t())
        torch.compiler.reset()


LAYERS: dict[str, tuple[Callable[[], nn.RNNBase], int]] = {
    "LSTM": (lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True), 2),
    "GRU": (lambda: nn.GRU(6, 5, batch_first=True), 1),
    "RNN tanh": (lambda: nn.RNN(6, 5), 1),
    "RNN relu": (lambda: nn.RNN(6, 5, nonlinearity="relu", bias=False), 1),
}


class TestRecurrent:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("name", LAYERS)
    def test_layers_lower_everything_and_sum_in_float32(
        self, name: str, dtype: torch.dtype, units: MatrixUnits
    ) -> None:
        torch.manual_seed(0)
        layer = LAYERS[name][0]()
        x = torch.randn(7, 3, 6, requires_grad=True)
        with torch.autocast("cpu", dtype=dtype):
            output, states = layer(x)
        output.float().sum().backward()
        got = [p.grad for p in layer.parameters()]

        rounded = LAYERS[name][0]().double()
        for mine, theirs in zip(rounded.parameters(), layer.parameters(), strict=True):
            mine.data.copy_(theirs.data.to(dtype))
        exact, _ = rounded(x.detach().to(dtype).double())
        exact.sum().backward()

        flat = states if isinstance(states, tuple) else (states,)
        assert {t.dtype for t in (output, *flat)} == {dtype}
        torch.testing.assert_close(output.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
        for g, parameter in zip(got, rounded.parameters(), strict=True):
            assert g is not None
            assert parameter.grad is not None
            assert g.dtype is torch.float32
            assert torch.equal(g, g.to(dtype).float())
            torch.testing.assert_close(g.double(), parameter.grad, rtol=torch.finfo(dtype).eps, atol=1e-4)

    def test_packed_sequences(self, units: MatrixUnits) -> None:
        layer = nn.LSTM(6, 5)
        packed = nn.utils.rnn.pack_sequence([torch.randn(n, 6) for n in (4, 2)])
        with region():
            output, (h, c) = layer(packed)
        assert (output.data.dtype, h.dtype, c.dtype) == (torch.float16,) * 3

    @pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
    def test_cells_give_states_in_the_dtype_of_the_region(
        self, cell: Callable[[int, int], nn.RNNCellBase], units: MatrixUnits
    ) -> None:
        layer, x = cell(6, 5), torch.randn(3, 6)
        with region():
            state = layer(x)
        tensors = state if isinstance(state, tuple) else (state,)
        assert {t.dtype for t in tensors} == {torch.float16}
        tensors[0].float().sum().backward()
        assert {p.grad.dtype for p in layer.parameters() if p.grad is not None} == {torch.float32}

    def test_outside_a_region_nothing_changes(self, units: MatrixUnits) -> None:
        layer, x = nn.LSTM(6, 5), torch.randn(7, 3, 6)
        assert layer(x)[0].dtype is torch.float32
        with ExitStack() as stack:
            stack.enter_context(region())
            stack.enter_context(region(enabled=False))
            assert layer(x)[0].dtype is torch.float32

# SPDX-License-Identifier: Apache-2.0
"""Linear layers that multiply in float8: their results, and that they come and go without a trace."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from floatwise.errors import PlanError, UnknownNameError
from floatwise.plan import ModulePolicy, Policy, recipe
from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.float8_scaling import FLOAT8_SCALINGS

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Block(nn.Module):
    """A layer with a residual, as in a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + changed


def network(depth: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(depth)), nn.Linear(32, 10))


def batch(rows: int = 32, width: int = 32) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 2, width)


def bfloat16_region() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def train_step(model: nn.Module, x: Tensor, region: AbstractContextManager[Any] | None = None) -> list[Tensor]:
    """Returns the output and all gradients, the input's first."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    with region or nullcontext():
        output = model(x)
    output.float().square().mean().backward()
    assert x.grad is not None
    return [output.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_same(results: list[Tensor], expected: list[Tensor]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert torch.equal(result, wanted)


# The reference is written from the formulas in torchao's documentation, with torch's own casts.


class Cast(NamedTuple):
    """Format and the dimension that shares a scale, None for the whole tensor, "blocks" along a dimension."""

    dtype: torch.dtype | None
    dim: int | None = None
    power_of_two: bool = False
    blocks: bool = False


def emulated(x: Tensor, cast: Cast) -> Tensor:
    if cast.dtype is None:
        return x.float()
    if cast.blocks:
        return emulated_blocks(x.float(), cast)
    amax = x.abs().amax() if cast.dim is None else x.abs().amax(cast.dim, keepdim=True)
    scale = (torch.finfo(cast.dtype).max / amax.double()).float()
    if cast.power_of_two:
        scale = torch.exp2(scale.log2().floor())
    return (x.float() * scale).to(cast.dtype).float() / scale


def emulated_blocks(x: Tensor, cast: Cast) -> Tensor:
    assert cast.dim is not None
    assert cast.dtype is not None
    largest = {E4M3: 8, E5M2: 15}[cast.dtype]
    parts = []
    for part in x.split(32, cast.dim):
        scale = torch.exp2(part.abs().amax(cast.dim, keepdim=True).log2().floor() - largest)
        limit = torch.finfo(cast.dtype).max
        parts.append((part / scale).clamp(-limit, limit).to(cast.dtype).float() * scale)
    return torch.cat(parts, cast.dim)


class Casts(NamedTuple):
    """Of input and weight for the output, gradient and weight for the input's, gradient and input for the weight's."""

    output: tuple[Cast, Cast]
    grad_input: tuple[Cast, Cast]
    grad_weight: tuple[Cast, Cast]


ALL4, ALL5 = Cast(E4M3), Cast(E5M2)
ROW1, ROW0, HIGH = Cast(E4M3, 1, True), Cast(E4M3, 0, True), Cast(None)
MX1, MX0 = Cast(E4M3, 1, blocks=True), Cast(E4M3, 0, blocks=True)
MX1_5, MX0_5 = Cast(E5M2, 1, blocks=True), Cast(E5M2, 0, blocks=True)
CASTS = {
    "tensorwise": Casts((ALL4, ALL4), (ALL5, ALL4), (ALL5, ALL4)),
    "rowwise": Casts((ROW1, ROW1), (ROW1, ROW0), (ROW0, ROW0)),
    "rowwise_with_gw_hp": Casts((ROW1, ROW1), (ROW1, Cast(E4M3, None, True)), (HIGH, HIGH)),
    "mx": Casts((MX1, MX1), (MX1, MX0), (MX0, MX0)),
    "mx_wide_gradients": Casts((MX1, MX1), (MX1_5, MX0), (MX0_5, MX0)),
}


@pytest.mark.parametrize("region", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(64,), (2, 32), (2, 4, 8)])
@pytest.mark.parametrize("scaling", CASTS)
def test_the_three_products_are_those_of_the_formula(
    scaling: str, shape: tuple[int, ...], region: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(96, 64)
    x = torch.randn(*shape, 96).mul(torch.logspace(-3, 2, 96)).requires_grad_()
    gradient = torch.randn(*shape, 64).mul(torch.logspace(-6, 0, 64)).to(region)
    with Float8Linears(layer, scaling) as linears, torch.autocast("cpu", region, enabled=region is not None):
        output = layer(x)
    assert linears.converted == ("",)
    output.backward(gradient)

    casts, dtype = CASTS[scaling], region or torch.float32
    values, grads = x.detach().to(dtype).reshape(-1, 96), gradient.reshape(-1, 64)
    left, right = (emulated(t, c) for t, c in zip((values, layer.weight.detach()), casts.output, strict=True))
    assert torch.equal(output, (left @ right.t()).to(dtype).reshape(*shape, 64) + layer.bias.to(dtype))
    left, right = (emulated(t, c) for t, c in zip((grads, layer.weight.detach()), casts.grad_input, strict=True))
    assert x.grad is not None
    assert torch.equal(x.grad, (left @ right).to(dtype).float().reshape(x.shape))
    left, right = (emulated(t, c) for t, c in zip((grads, values), casts.grad_weight, strict=True))
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, (left.t() @ right).to(dtype).float())


@pytest.mark.parametrize("scaling", FLOAT8_SCALINGS)
def test_results_are_near_those_of_float32(scaling: str) -> None:
    model = network()
    exact = train_step(model, batch(64))
    with Float8Linears(model, scaling):
        rounded = train_step(model, batch(64))
    for result, wanted in zip(rounded, exact, strict=True):
        error = float((result - wanted).norm() / wanted.norm())
        assert 0 < error < 0.15


def test_removal_leaves_nothing_behind() -> None:
    model = network()
    before, state = train_step(model, batch()), {id(m): dict(vars(m)) for m in model.modules()}
    linears = Float8Linears(model, "tensorwise")
    assert not torch.equal(train_step(model, batch())[0], before[0])
    linears.remove()
    linears.remove()
    assert {id(m): dict(vars(m)) for m in model.modules()} == state
    assert_same(train_step(model, batch()), before)


def test_the_model_keeps_its_classes_parameters_and_keys() -> None:
    model = network()
    kept = [type(m) for m in model.modules()], list(map(id, model.parameters())), list(model.state_dict())
    with Float8Linears(model, "rowwise"):
        assert kept == ([type(m) for m in model.modules()], list(map(id, model.parameters())), list(model.state_dict()))


def test_an_exception_inside_ends_the_emulation() -> None:
    model = network()
    with pytest.raises(ZeroDivisionError), Float8Linears(model, "mx"):
        raise ZeroDivisionError
    assert not any("forward" in vars(m) for m in model.modules())


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("region", [nullcontext, bfloat16_region])
def test_checkpointing_changes_no_result(region: Callable[[], AbstractContextManager[Any]], reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(self.inner, x, use_reentrant=reentrant)
            return result

    model = network()
    with Float8Linears(model, "rowwise"):
        assert_same(train_step(Checkpointed(model), batch(), region()), train_step(model, batch(), region()))


def test_a_backward_within_the_region_gives_the_same_gradients() -> None:
    model = network()
    with Float8Linears(model, "tensorwise"):
        outside = train_step(model, batch(), bfloat16_region())
        with bfloat16_region():
            assert_same(train_step(model, batch()), outside)


# torch.compile looks at the `grad` of whatever comes between its graphs.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")], ids=["parallel", "compiled"]
)
@pytest.mark.parametrize("wrapped_first", [True, False])
def test_wrappers_change_neither_paths_nor_results(wrap: Callable[[nn.Module], nn.Module], wrapped_first: bool) -> None:
    model = network()
    with Float8Linears(model, "rowwise") as plain:
        expected = train_step(model, batch())
    wrapped = wrap(model)
    with Float8Linears(wrapped if wrapped_first else model, "rowwise") as linears:
        assert linears.converted == plain.converted == ("0.up", "0.down", "1.up", "1.down")
        assert_same(train_step(wrapped, batch()), expected)
    torch.compiler.reset()


def test_copies_and_pickles_compute_alike() -> None:
    model = network()
    with Float8Linears(model, "rowwise") as linears:
        expected = train_step(model, batch())
        counted = linears.counts()
        assert_same(train_step(copy.deepcopy(model), batch()), expected)
        assert_same(train_step(pickle.loads(pickle.dumps(model)), batch()), expected)
        assert linears.counts() == counted, "the copy counted into the original"


def test_gradients_accumulate_and_optimizers_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Float8Linears(model, "tensorwise"):
        losses = []
        for _ in range(12):
            optimizer.zero_grad()
            for half in batch(64).clamp(-3, 3).split(32):
                loss = F.cross_entropy(model(half), torch.arange(32) % 10) / 2
                loss.backward()
            losses.append(loss.item())
            optimizer.step()
    assert losses[-1] < losses[0] - 0.05


def test_frozen_weights_and_inputs_cost_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    model[0].requires_grad_(False)
    with Float8Linears(model, "rowwise") as linears:
        model(batch()).sum().backward()
    assert model[0].weight.grad is None
    assert model[1].weight.grad is not None
    assert linears.counts()["0", "grad_output"].casts == 0


def test_weights_changed_between_forward_and_backward_are_refused_as_ever() -> None:
    layer = nn.Linear(32, 32)
    with Float8Linears(layer, "tensorwise"):
        output = layer(batch().requires_grad_())
        with torch.no_grad():
            layer.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_second_derivatives_are_refused() -> None:
    layer = nn.Linear(32, 32)
    x = batch().requires_grad_()
    with Float8Linears(layer, "tensorwise"):
        (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def test_empty_batches_pass_through() -> None:
    layer = nn.Linear(32, 16)
    with Float8Linears(layer, "rowwise"):
        assert layer(torch.zeros(0, 32)).shape == (0, 16)


def test_products_inside_are_not_heard_as_the_models_own() -> None:
    class Heard(TorchFunctionMode):
        names: tuple[str, ...] = ()

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names += (getattr(func, "__name__", ""),)
            return func(*args, **(kwargs or {}))

    layer = nn.Linear(32, 32)
    with Float8Linears(layer, "mx"), Heard() as heard:
        layer(batch()).sum().backward()
    assert not {"mm", "matmul", "clamp_", "amax"} & set(heard.names)


def test_counts_tell_layer_and_role() -> None:
    model = network()
    with Float8Linears(model, "rowwise") as linears:
        train_step(model, batch())
        with torch.no_grad():
            model(batch())
    counts = linears.counts()
    assert set(counts) == {(p, r) for p in linears.converted for r in ("input", "weight", "grad_output")}
    # Rows for the output, twice; columns for the weight's gradient, once.
    assert [counts["0.up", r].casts for r in ("input", "weight", "grad_output")] == [3, 3, 2]
    assert counts["0.up", "weight"].elements == 3 * 64 * 32
    first = model[0]
    assert isinstance(first, Block)
    assert counts["0.up", "weight"].amax == first.up.weight.abs().max().item()


def test_a_tensorwise_scale_flushes_what_rows_keep() -> None:
    layer = nn.Linear(32, 32)
    x = torch.ones(16, 32)
    x[1:] = 2.0**-20
    shares = {}
    for scaling in ("tensorwise", "rowwise"):
        with Float8Linears(layer, scaling) as linears, torch.no_grad():
            layer(x)
        shares[scaling] = linears.counts()["", "input"].underflow_share
    assert shares == {"tensorwise": 15 / 16, "rowwise": 0.0}


def test_rows_that_hardware_refuses_are_reported() -> None:
    model = network()
    with Float8Linears(model, "tensorwise") as linears:
        with torch.no_grad():
            model(batch(24))
        assert linears.uneven_rows() == {}  # only the weight's gradient sums over rows
        train_step(model, batch(32))
        assert linears.uneven_rows() == {}
        train_step(model, batch(24))
        assert linears.uneven_rows() == dict.fromkeys(linears.converted, 24)


@pytest.mark.parametrize(("name", "scaling"), [("fp8-tensorwise", "tensorwise"), ("fp8-rowwise", "rowwise")])
def test_a_recipe_says_how_to_scale(name: str, scaling: str) -> None:
    model = network()
    with Float8Linears(model, recipe(name)) as by_recipe:
        assert by_recipe.scaling is FLOAT8_SCALINGS[scaling]
        results = train_step(model, batch())
    with Float8Linears(model, scaling):
        assert_same(results, train_step(model, batch()))


def test_islands_of_the_plan_are_left_out() -> None:
    high, low = Policy(compute_dtype="float32"), Policy(compute_dtype="bfloat16")
    modules = (ModulePolicy(module="0", policy=high), ModulePolicy(module="1.down", policy=low))
    plan = recipe("fp8-rowwise").model_copy(update={"modules": modules})
    with Float8Linears(network(), plan) as linears:
        assert linears.converted == ("1.up",)
    assert [(o.path, o.code, o.data) for o in linears.left_out] == [
        ("0.up", "island", {"format": "float32"}),
        ("0.down", "island", {"format": "float32"}),
        ("1.down", "island", {"format": "bfloat16"}),
        ("2", "dimensions", {"inputs": 32, "outputs": 10, "multiple": 16}),
    ]


def test_parts_of_a_model_may_be_given_with_their_paths() -> None:
    model = network()
    names = {id(module): path for path, module in model.named_modules()}
    with Float8Linears(model[1], recipe("fp8-rowwise"), name_of=lambda module: names[id(module)]) as linears:
        assert linears.converted == ("1.up", "1.down")


def test_amds_formats_round_otherwise() -> None:
    policy = Policy(compute_dtype="float8_e4m3fnuz")
    layer, x = nn.Linear(32, 32), batch()
    outputs = []
    for plan in (recipe("fp8-tensorwise"), recipe("fp8-tensorwise").model_copy(update={"policy": policy})):
        with Float8Linears(layer, plan):
            outputs.append(layer(x))
    assert not torch.equal(*outputs)


def test_plans_and_names_without_float8_are_refused() -> None:
    with pytest.raises(PlanError, match="'fp8-tensorwise'"):
        Float8Linears(network(), recipe("bf16-mixed"))
    with pytest.raises(UnknownNameError, match="did you mean 'tensorwise'"):
        Float8Linears(network(), "tensorwse")

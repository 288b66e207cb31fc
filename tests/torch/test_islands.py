# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from floatwise.plan import ModulePolicy, Plan, Policy, recipe
from floatwise.torch import apply_islands, autocast_region
from floatwise.torch.cuda_policy import CudaPolicy

FLOAT32 = Policy(compute_dtype="float32")


def plan_with(*modules: str | tuple[str, Policy]) -> Plan:
    entries = [m if isinstance(m, tuple) else (m, FLOAT32) for m in modules]
    return recipe("bf16-mixed", modules=tuple(ModulePolicy(module=g, policy=p) for g, p in entries))


class Noted(nn.Module):
    """A linear layer that notes the dtypes it meets."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = inner
        self.seen: list[tuple[torch.dtype, torch.dtype]] = []

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.seen.append((x.dtype, y.dtype))
        return y if self.inner is None else self.inner(y)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = Noted()
        self.blocks = nn.ModuleList(Noted(Noted()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def run(model: nn.Module, *args: Any, plan: Plan | None = None, **kwargs: Any) -> Any:
    with autocast_region(plan or recipe("bf16-mixed"), "cpu"):
        return model(*args, **kwargs)


def computed(module: Any) -> torch.dtype:
    dtype = module.seen[-1][1]
    assert isinstance(dtype, torch.dtype)
    return dtype


X = torch.randn(2, 4)


class TestWhere:
    @pytest.mark.parametrize(
        ("globs", "islands"),
        [
            (["stem"], {"stem"}),
            (["blocks.1"], {"blocks.1", "blocks.1.inner"}),
            (["blocks.*.inner"], {"blocks.0.inner", "blocks.1.inner"}),
            (["blocks"], {"blocks.0", "blocks.0.inner", "blocks.1", "blocks.1.inner"}),
            (["(root)"], {"stem", "blocks.0", "blocks.0.inner", "blocks.1", "blocks.1.inner"}),
            (["**"], {"stem", "blocks.0", "blocks.0.inner", "blocks.1", "blocks.1.inner"}),
            ([("**", FLOAT32), ("blocks.0.**", Policy())], {"stem", "blocks.1", "blocks.1.inner"}),
            ([("blocks.0", FLOAT32), ("blocks.0.inner", Policy())], {"blocks.0"}),
        ],
        ids=str,
    )
    def test_a_module_and_what_it_calls(self, globs: list[Any], islands: set[str]) -> None:
        model = Model()
        apply_islands(model, plan_with(*globs))
        run(model, X)
        got = {p for p, m in model.named_modules() if isinstance(m, Noted) and computed(m) is torch.float32}
        assert got == islands

    def test_what_it_is_given_and_what_it_returns(self) -> None:
        model = Model()
        apply_islands(model, plan_with("blocks.0"))
        assert run(model, X).dtype is torch.bfloat16
        assert [m.seen for m in (model.stem, model.blocks[0], model.blocks[1])] == [
            [(torch.float32, torch.bfloat16)],
            [(torch.float32, torch.float32)],
            [(torch.float32, torch.bfloat16)],
        ]

    @pytest.mark.parametrize("name", ["float32", "bfloat16"])
    def test_outputs_have_the_policys_dtype(self, name: Any) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Identity())
        apply_islands(model, plan_with(("0", Policy(compute_dtype="float32", output_dtype=name))))
        assert run(model, X).dtype is getattr(torch, name)

    def test_there_is_no_border_between_modules_of_one_policy(self) -> None:
        model = Model()
        apply_islands(model, plan_with(("(root)", FLOAT32), ("blocks.**", Policy())))
        run(model, X)
        block = model.blocks[0]
        assert isinstance(block, Noted)
        assert isinstance(block.inner, Noted)
        assert (block.seen, block.inner.seen) == (
            [(torch.float32, torch.bfloat16)],
            [(torch.bfloat16, torch.bfloat16)],
        )
        assert run(model, X).dtype is torch.float32

    def test_nothing_changes_outside_a_region(self) -> None:
        model = Model()
        low_output = Policy(compute_dtype="float32", output_dtype="bfloat16")
        apply_islands(model, plan_with(("stem", low_output), ("blocks.0", FLOAT32), ("blocks.0.inner", Policy())))
        expected = copy.deepcopy(model)(X)
        assert model(X).dtype is torch.float32
        assert torch.equal(model(X), expected)

    def test_values_are_those_of_float32(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        apply_islands(model, plan_with("(root)"))
        assert torch.equal(run(model, X), model(X))

    def test_a_shared_module_is_in_float32_when_one_of_its_paths_is(self) -> None:
        shared = Noted()
        model = nn.Sequential(shared, nn.Sequential(shared))
        apply_islands(model, plan_with(("0", FLOAT32), ("1.0", Policy())))
        run(model, X)
        assert [out for _, out in shared.seen] == [torch.float32, torch.float32]

    @pytest.mark.parametrize("wrap", [nn.DataParallel, nn.Sequential])
    def test_wrappers_and_names_of_the_callers_own(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        model = Model()
        whole = wrap(model)
        path = "stem" if isinstance(whole, nn.DataParallel) else "0.stem"
        apply_islands(whole, plan_with(path))
        run(whole, X)
        assert computed(model.stem) is torch.float32

    def test_names_may_come_from_elsewhere(self) -> None:
        part = nn.Sequential(Noted())
        names = {id(part): "discriminator", id(part[0]): "discriminator.first"}
        found = apply_islands(
            part, plan_with("discriminator.first", "generator"), name_of=lambda m: names.get(id(m), "?")
        )
        run(part, X)
        assert computed(part[0]) is torch.float32
        assert found.unmatched == ("generator",)


class TestUnmatched:
    def test_a_glob_without_a_module_is_a_warning_with_the_nearest(self) -> None:
        with pytest.warns(UserWarning, match=r"'block\.0' matches no module of this model; nearest: blocks\.0"):
            islands = apply_islands(Model(), plan_with("block.0", "stem"))
        assert islands.unmatched == ("block.0",)
        assert list(islands.policies) == ["stem"]

    def test_any_path_helps_when_none_is_near(self) -> None:
        with pytest.warns(UserWarning, match="nearest: blocks, blocks.0, blocks.0.inner"):
            apply_islands(Model(), plan_with("?"))


class Fails(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


class TestExceptionsAndRecursion:
    def test_an_exception_restores_the_region(self) -> None:
        model = nn.ModuleList([Fails(ValueError("inside")), Noted()])
        apply_islands(model, plan_with("0"))
        with autocast_region(recipe("bf16-mixed"), "cpu"):
            with pytest.raises(ValueError, match="inside"):
                model[0](X)
            model[1](X)
        assert computed(model[1]) is torch.bfloat16

    def test_a_pre_hook_that_raises_too(self) -> None:
        model = nn.ModuleList([Noted(), Noted()])

        def refuse(module: nn.Module, args: Any) -> None:
            raise ValueError("refused")

        model[0].register_forward_pre_hook(refuse)
        apply_islands(model, plan_with("0"))
        with autocast_region(recipe("bf16-mixed"), "cpu"):
            with pytest.raises(ValueError, match="refused"):
                model[0](X)
            model[1](X)
        assert computed(model[1]) is torch.bfloat16

    def test_a_module_that_calls_itself(self) -> None:
        class Recursive(Noted):
            def forward(self, x: Tensor, depth: int = 2) -> Tensor:
                y: Tensor = self.linear(x)
                self.seen.append((x.dtype, y.dtype))
                return self(y, depth - 1) if depth else y

        recursive = Recursive()
        model = nn.Sequential(recursive, Noted())
        apply_islands(model, plan_with("0"))
        run(model, X)
        assert [out for _, out in recursive.seen] == [torch.float32] * 3
        assert computed(model[1]) is torch.bfloat16

    def test_threads_do_not_meet(self) -> None:
        model = Model()
        apply_islands(model, plan_with("blocks.0"))
        results: list[torch.dtype] = []

        def work() -> None:
            for _ in range(10):
                results.append(run(model, X).dtype)

        with CudaPolicy():
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert results == [torch.bfloat16] * 30


class TestTraining:
    @pytest.mark.parametrize("reentrant", [False, True])
    @pytest.mark.parametrize(
        "globs",
        [
            ["0"],
            ["(root)"],
            [("(root)", FLOAT32), ("0.inner", Policy())],
            [("(root)", FLOAT32), ("**", Policy())],
        ],
        ids=str,
    )
    def test_checkpointing_gives_the_same_gradients(self, globs: list[Any], reentrant: bool) -> None:
        class Checkpointed(nn.Sequential):
            on = False

            def forward(self, x: Tensor) -> Tensor:
                for child in self:
                    x = checkpoint(child, x, use_reentrant=reentrant) if self.on else child(x)
                return x

        model = Checkpointed(Noted(Noted()), Noted())
        apply_islands(model, plan_with(*globs))
        results = []
        with CudaPolicy():
            for model.on in (False, True):
                model.zero_grad()
                run(model, X.clone().requires_grad_()).float().exp().sum().backward()
                results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert len(results[0]) == 6
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    def test_gradients_cross_the_border(self) -> None:
        model = Model()
        apply_islands(model, plan_with("blocks.0"))
        run(model, X).float().sum().backward()
        assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


def values_and_gradients(called: nn.Module, model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    output = run(called, X)
    output.float().sum().backward()
    return [output.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


# torch.compile imports parts of torch that warn of their own deprecation.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestCompile:
    @pytest.mark.parametrize("globs", [["1"], ["(root)"], [("1", FLOAT32), ("1.0", Policy())]], ids=str)
    def test_one_graph_with_the_same_values_and_gradients(self, globs: list[Any]) -> None:
        torch.compiler.reset()
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4))
        apply_islands(model, plan_with(*globs))
        compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
        with CudaPolicy():
            expected, *traced = [values_and_gradients(m, model) for m in (model, compiled, compiled)]
        for got in traced:
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        torch.compiler.reset()

    # Dynamo looks for `.grad` on every tensor and hides the warning only under the default filters.
    @pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
    def test_a_graph_break_inside(self) -> None:
        torch.compiler.reset()

        class Breaks(Noted):
            def forward(self, x: Tensor) -> Tensor:
                y: Tensor = self.linear(x)
                torch._dynamo.graph_break()
                z: Tensor = y + self.linear(y)
                return z

        model = nn.Sequential(nn.Linear(4, 4), Breaks(), nn.Linear(4, 4))
        compiled: Any = torch.compile(model, backend="aot_eager")
        apply_islands(compiled, plan_with("1"))
        with CudaPolicy():
            expected, *traced = [values_and_gradients(m, model) for m in (model, compiled, compiled)]
        for got in traced:
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        torch.compiler.reset()


class TestHandles:
    def test_removing_takes_all_hooks_off(self) -> None:
        model = Model()
        islands = apply_islands(model, plan_with("**"))
        islands.remove()
        islands.remove()
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())

    def test_models_with_islands_can_be_copied_and_saved(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        apply_islands(model, plan_with("1"))
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
            with torch.no_grad():
                other.get_parameter("1.weight").zero_()
            assert run(other, X).dtype is torch.float32
            assert not torch.equal(run(other, X), run(model, X))

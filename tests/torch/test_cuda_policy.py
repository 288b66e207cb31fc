# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from floatwise.torch.cuda_lists import FLOAT32, FLOAT32_APPEND_DTYPE, FLOAT32_SET_DTYPE
from floatwise.torch.cuda_policy import CudaPolicy

LOW = [torch.bfloat16, torch.float16]


@pytest.fixture
def policy() -> Iterator[CudaPolicy]:
    with CudaPolicy() as held:
        yield held


def region(dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype)


def values(*shape: int) -> Tensor:
    """Numbers between 0.2 and 0.8: in the domain of every operator below."""
    return torch.rand(*shape) * 0.6 + 0.2


def classes(*shape: int) -> Tensor:
    return torch.randint(0, 3, shape)


def signs(*shape: int) -> Tensor:
    return torch.randint(0, 2, shape) * 2 - 1


def image(dimensions: int) -> tuple[Tensor, list[int]]:
    return values(1, 2, *[3] * dimensions), [6] * dimensions


UNARY = "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan softplus"
PAIRWISE = "cosine_similarity dist cdist binary_cross_entropy_with_logits kl_div"
PAIRED_LOSSES = "huber_loss l1_loss mse_loss smooth_l1_loss"

ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    **{name: lambda: (values(4, 8),) for name in UNARY.split()},
    **{name: lambda: (values(4, 8), values(4, 8)) for name in f"{PAIRWISE} {PAIRED_LOSSES}".split()},
    "pow.Scalar": lambda: (2.0, values(4, 8)),
    "pow.Tensor_Scalar": lambda: (values(4, 8), 3),
    "pow.Tensor_Tensor": lambda: (values(4, 8), values(4, 8)),
    "logsumexp": lambda: (values(4, 8), [1]),
    "group_norm": lambda: (values(2, 4, 3), 2),
    "layer_norm": lambda: (values(4, 8), [8]),
    "native_layer_norm": lambda: (values(4, 8), [8], None, None, 1e-5),
    "rms_norm": lambda: (values(4, 8), [8]),
    "frobenius_norm.dim": lambda: (values(4, 8), [0, 1]),
    "nuclear_norm": lambda: (values(4, 8),),
    "nuclear_norm.dim": lambda: (values(4, 8), [0, 1]),
    "renorm": lambda: (values(4, 8), 2, 0, 1.0),
    "pdist": lambda: (values(4, 8),),
    "cosine_embedding_loss": lambda: (values(4, 8), values(4, 8), signs(4)),
    "hinge_embedding_loss": lambda: (values(4, 8), signs(4, 8)),
    "margin_ranking_loss": lambda: (values(4), values(4), signs(4)),
    "multi_margin_loss": lambda: (values(4, 8), classes(4)),
    "multilabel_margin_loss": lambda: (values(4, 8), classes(4, 8)),
    "nll_loss": lambda: (values(4, 8), classes(4)),
    "nll_loss2d": lambda: (values(2, 3, 4, 4), classes(2, 4, 4)),
    "poisson_nll_loss": lambda: (values(4, 8), values(4, 8), True, False, 1e-8, 1),
    "soft_margin_loss": lambda: (values(4, 8), signs(4, 8)),
    "triplet_margin_loss": lambda: (values(4, 8), values(4, 8), values(4, 8)),
    **{f"upsample_nearest{n}d": partial(image, n) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": partial(image, n) for n in (1, 2, 3)},
    "upsample_linear1d": lambda: (values(1, 2, 3), [6], False),
    "upsample_trilinear3d": lambda: (values(1, 2, 3, 3, 3), [6, 6, 6], False),
    **{
        name: lambda: (values(1, 2, 3, 3), [6, 6], False)
        for name in (
            "upsample_bilinear2d",
            "_upsample_bilinear2d_aa",
            "upsample_bicubic2d",
            "_upsample_bicubic2d_aa",
        )
    },
    "prod": lambda: (values(4, 8),),
    "prod.dim_int": lambda: (values(4, 8), 1),
    "cumprod": lambda: (values(4, 8), 1),
    "cumsum": lambda: (values(4, 8), 1),
    "sum": lambda: (values(4, 8),),
    "sum.dim_IntList": lambda: (values(4, 8), [1]),
    "softmax.int": lambda: (values(4, 8), -1),
    "log_softmax.int": lambda: (values(4, 8), -1),
    "linalg_vector_norm": lambda: (values(4, 8), 3),
    "linalg_matrix_norm": lambda: (values(4, 8), 1),
    "linalg_matrix_norm.str_ord": lambda: (values(4, 8),),
    "norm.Scalar": lambda: (values(4, 8), 3),
    "norm.ScalarOpt_dim": lambda: (values(4, 8), 3, [1]),
}


def operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def cast(arguments: tuple[Any, ...], dtype: torch.dtype) -> list[Any]:
    return [a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments]


def first(result: Any) -> Tensor:
    tensor = result[0] if isinstance(result, tuple) else result
    assert isinstance(tensor, Tensor)
    return tensor


def test_the_table_covers_the_lists() -> None:
    assert set(ARGUMENTS) == {*FLOAT32, *FLOAT32_SET_DTYPE, *FLOAT32_APPEND_DTYPE}


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_listed_operators_compute_in_float32(name: str, dtype: torch.dtype, policy: CudaPolicy) -> None:
    low = cast(ARGUMENTS[name](), dtype)
    expected = first(operator(name)(*cast(tuple(low), torch.float32)))
    with region(dtype):
        got = first(operator(name)(*low))
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


WIDEST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "atan2": torch.atan2,
    "bilinear": lambda a, b: functional.bilinear(a, b, values(5, 4, 4).to(b.dtype)),
    "cross": lambda a, b: torch.cross(a[:, :3], b[:, :3], dim=1),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "index_put": lambda a, b: torch.index_put(a, (torch.tensor([0]),), b[:1]),
    "scatter_add": lambda a, b: torch.scatter_add(a, 0, torch.zeros(4, 4, dtype=torch.int64), b),
    "tensordot": lambda a, b: torch.tensordot(a, b, dims=1),
    "vdot": lambda a, b: torch.vdot(a[0], b[0]),
}


@pytest.mark.parametrize("name", WIDEST)
def test_mixed_inputs_take_the_widest_dtype(name: str, policy: CudaPolicy) -> None:
    low, wide = values(4, 4).bfloat16(), values(4, 4)
    expected = WIDEST[name](low.float(), wide) if name != "bilinear" else None
    with region():
        mixed, same = WIDEST[name](low, wide), WIDEST[name](low, low)
    assert mixed.dtype is torch.float32
    assert same.dtype is torch.bfloat16
    if expected is not None and name != "tensordot":  # tensordot's own product is one of the lowered operators
        torch.testing.assert_close(mixed, expected)


@pytest.mark.parametrize("name", ["mv", "addmv", "addr"])
def test_products_that_the_cpu_forgets_are_lowered(name: str, policy: CudaPolicy) -> None:
    matrix, vector = values(4, 4), values(4)
    arguments = {"mv": (matrix, vector), "addmv": (vector, matrix, vector), "addr": (matrix, vector, vector)}[name]
    expected = getattr(torch, name)(*cast(arguments, torch.bfloat16))
    with region():
        got = getattr(torch, name)(*arguments)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got, expected)


class TestDtypeArguments:
    @pytest.mark.parametrize("asked", [torch.bfloat16, torch.float32, torch.float64])
    def test_a_dtype_that_was_given_is_respected(self, asked: torch.dtype, policy: CudaPolicy) -> None:
        x = values(4, 8).bfloat16()
        with region():
            results = [
                x.softmax(-1, dtype=asked),
                x.sum(dtype=asked),
                x.sum(1, dtype=asked),
                x.cumsum(0, dtype=asked),
            ]
        assert [r.dtype for r in results] == [asked] * 4

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex64])
    def test_other_inputs_are_left_alone(self, dtype: torch.dtype, policy: CudaPolicy) -> None:
        x = torch.ones(4, 8).to(dtype)
        expected = [x.sum().dtype, x.cumsum(0).dtype, (x**2).dtype]
        with region():
            assert [x.sum().dtype, x.cumsum(0).dtype, (x**2).dtype] == expected

    def test_defaults_reach_the_typed_norm(self, policy: CudaPolicy) -> None:
        x = values(4, 8).bfloat16()
        with region():
            norms = [
                operator("norm.Scalar")(x),
                operator("norm.ScalarOpt_dim")(x, 2, [1], True),
                x.double().norm(),
            ]
        assert [n.dtype for n in norms] == [torch.float32, torch.float32, torch.float64]
        assert norms[1].shape == (4, 1)
        torch.testing.assert_close(norms[0], x.float().norm())


class TestComposites:
    def test_losses_and_norms_from_python(self, policy: CudaPolicy) -> None:
        logits, target = values(4, 8).bfloat16(), classes(4)
        results: dict[Callable[..., Any], tuple[Tensor, ...]] = {
            functional.cross_entropy: (logits, target),
            functional.normalize: (logits,),
            functional.cosine_similarity: (logits, logits),
            functional.binary_cross_entropy: (logits, values(4, 8).bfloat16()),
            functional.gaussian_nll_loss: (logits, logits, logits),
        }
        with region():
            for function, arguments in results.items():
                got = function(*arguments)
                assert got.dtype is torch.float32, function.__name__
        torch.testing.assert_close(
            functional.cross_entropy(logits.float(), target),
            self._in_region(functional.cross_entropy, logits, target),
        )

    def _in_region(self, function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        with region():
            return function(*arguments)

    def test_operators_below_a_listed_one_stay_in_float32(self, policy: CudaPolicy) -> None:
        """cosine_similarity and matrix norms multiply inside: autocast must not lower that."""
        x = values(4, 8).bfloat16()
        assert torch.equal(
            self._in_region(functional.cosine_similarity, x, x.flip(0)),
            functional.cosine_similarity(x.float(), x.flip(0).float()),
        )


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        attention: Tensor = self.last(self.norm(self.first(x))).softmax(-1)
        return attention.exp().sum() + (attention**2).mean()


def gradients(model: nn.Module, run: Callable[[Tensor], Tensor], inputs: Tensor) -> list[Tensor]:
    model.zero_grad()
    with region():
        loss = run(inputs)
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


class TestAutograd:
    def test_gradients_are_those_of_explicit_casts(self, policy: CudaPolicy) -> None:
        low = values(4, 8).bfloat16().requires_grad_()
        with region():
            low.softmax(-1).log().sum().backward()
        explicit = low.detach().clone().requires_grad_()
        explicit.float().softmax(-1).log().sum().backward()
        assert low.grad is not None
        assert low.grad.dtype is torch.bfloat16
        assert torch.equal(low.grad, explicit.grad if explicit.grad is not None else low)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointing_recomputes_by_the_same_rules(self, reentrant: bool, policy: CudaPolicy) -> None:
        model, x = Small(), torch.randn(4, 8, requires_grad=True)
        plain = gradients(model, model, x)
        again = gradients(model, lambda i: checkpoint(model, i, use_reentrant=reentrant), x)
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))

    def test_threads_have_their_own_region(self, policy: CudaPolicy) -> None:
        x = values(4, 8).bfloat16()
        seen: dict[str, torch.dtype] = {}

        def other() -> None:
            seen["without"] = x.softmax(-1).dtype
            with region():
                seen["within"] = x.softmax(-1).dtype

        with region():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert seen == {"without": torch.bfloat16, "within": torch.float32}

    def test_an_island_inside_is_left_alone(self, policy: CudaPolicy) -> None:
        x = values(4, 8).bfloat16()
        with region(), torch.autocast("cpu", enabled=False):
            assert x.softmax(-1).dtype is torch.bfloat16


class TestHolding:
    def test_the_last_holder_removes_the_kernels(self) -> None:
        x = values(4, 8).bfloat16()
        one, two = CudaPolicy(), CudaPolicy()
        one.close()
        one.close()
        with region():
            assert x.exp().dtype is torch.float32
        two.close()
        assert not two.active
        with region():
            assert x.exp().dtype is torch.bfloat16

    def test_an_exception_gives_up_the_hold(self) -> None:
        with pytest.raises(KeyError), CudaPolicy():
            raise KeyError
        with region():
            assert values(2).bfloat16().exp().dtype is torch.bfloat16

    def test_a_kernel_of_another_library_is_kept(self) -> None:
        other = torch.library.Library("aten", "IMPL")
        other.impl("rsqrt", lambda x: torch.zeros(1), "AutocastCPU")
        try:
            with CudaPolicy(), region():
                assert torch.equal(torch.rsqrt(values(2)), torch.zeros(1))
        finally:
            other._destroy()

    def test_many_threads_may_hold_it_at_once(self) -> None:
        def hold() -> None:
            for _ in range(20):
                with CudaPolicy(), region():
                    results.append(values(2).bfloat16().exp().dtype)

        results: list[torch.dtype] = []
        threads = [threading.Thread(target=hold) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [torch.float32] * 80


# torch.compile imports parts of torch that warn of their own deprecation.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestCompile:
    def test_compiled_code_follows_the_policy_and_forgets_it(self) -> None:
        torch.compiler.reset()
        model, x = Small(), torch.randn(4, 8)
        compiled = torch.compile(model, backend="aot_eager")
        for held in (True, False, True, False):
            if held:
                with CudaPolicy():
                    eager, traced = gradients(model, model, x), gradients(model, compiled, x)
            else:
                eager, traced = gradients(model, model, x), gradients(model, compiled, x)
            assert all(torch.equal(a, b) for a, b in zip(eager, traced, strict=True)), held
        torch.compiler.reset()

    def test_the_mark_is_a_device_type_of_no_tensor_here(self) -> None:
        assert torch.amp.is_autocast_available("ipu"), "choose another device type for held_kernels._MARK"
        with CudaPolicy():
            assert torch.is_autocast_enabled("ipu")
        assert not torch.is_autocast_enabled("ipu")

    @pytest.mark.slow
    def test_the_cache_on_disk_keeps_the_two_apart(self, tmp_path: Any) -> None:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
        kinds = [_softmax_dtype_in_a_new_process(held, environment) for held in ("held", "not held", "held")]
        assert kinds == ["torch.float32", "torch.bfloat16", "torch.float32"]


_COMPILED = """
import sys, torch
from floatwise.torch.cuda_policy import CudaPolicy
if sys.argv[1] == "held":
    CudaPolicy()
softmax = torch.compile(lambda x: x.softmax(-1) * 2)
with torch.autocast("cpu", dtype=torch.bfloat16):
    print(softmax(torch.randn(4, 8).bfloat16()).dtype)
"""


def _softmax_dtype_in_a_new_process(held: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _COMPILED, held],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()

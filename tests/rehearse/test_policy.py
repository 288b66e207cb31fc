# SPDX-License-Identifier: Apache-2.0
"""CUDA's choice of dtypes on CPU tensors: what every operator of a region is computed in, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.utils.checkpoint import checkpoint

from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.products import MatrixUnits
from floatwise.torch.cuda_policy import CudaPolicy

HALF = torch.float16


@pytest.fixture
def cuda() -> Iterator[None]:
    """Everything that a rehearsal holds."""
    with CudaPolicy(), CudaSpecials(), MatrixUnits([torch.float16, torch.bfloat16]):
        yield


def region(dtype: torch.dtype = HALF, enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


# -- PyTorch's own list of what its test of CUDA's autocast calls, and what it expects --------------------------------


def peer_lists() -> Any:
    """Returns the wheel's `AutocastTestLists` without what it imports: PyTorch's test tools need further packages."""
    source = Path(torch.testing.__file__).parent / "_internal" / "autocast_test_lists.py"
    lines = [line for line in source.read_text(encoding="utf-8").splitlines() if "import Test" not in line]
    names: dict[str, Any] = {"TEST_WITH_ROCM": False, "TestCase": object}
    exec("\n".join(line for line in lines if "import TEST_WITH_ROCM" not in line), names)
    return names["AutocastTestLists"](torch.device("cpu"))


LISTS = peer_lists()
# Not to be had on a CPU: kernels of cuDNN's, and of CUDA's fused recurrent cells.
# PyTorch's entry for einsum gives the operands as one tuple and is not called as it stands.
ABSENT = {"einsum", "cudnn_convolution", "cudnn_convolution_transpose", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"}

EXPECTED: list[tuple[str, tuple[str, ...]]] = [
    ("float16", ("torch_fp16", "nn_fp16", "methods_fp16", "linalg_fp16")),
    ("float32", ("torch_fp32", "nn_fp32", "methods_fp32")),
    ("widest", ("torch_need_autocast_promote",)),
]


def peer_cases() -> Iterator[Any]:
    for expected, names in EXPECTED:
        for list_name in names:
            for case in getattr(LISTS, list_name):
                name, arguments = case[0], case[1]
                options = case[2] if len(case) > 2 and isinstance(case[2], dict) else {}
                if name not in ABSENT:
                    yield pytest.param(list_name, name, arguments, options, expected, id=f"{list_name}:{name}")


def function(list_name: str, name: str, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if list_name.startswith("methods"):
        return getattr(arguments[0], name), arguments[1:]
    linalg: Any = vars(torch._C)["_linalg"]  # the stubs do not name it
    home = {"torch": torch, "nn": torch._C._nn, "linalg": linalg}[list_name.partition("_")[0]]
    return getattr(home, name), arguments


def dtypes_of(result: Any) -> set[torch.dtype]:
    if isinstance(result, Tensor):
        return {result.dtype} if result.is_floating_point() else set()
    return {d for r in result for d in dtypes_of(r)} if isinstance(result, (tuple, list)) else set()


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated", "ignore:Using torch.cross without")
@pytest.mark.parametrize(("list_name", "name", "arguments", "options", "expected"), list(peer_cases()))
def test_pytorchs_own_expectations_of_cuda_hold(
    list_name: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any], expected: str, cuda: None
) -> None:
    call, rest = function(list_name, name, arguments)
    with region():
        result = call(*rest, **options)
    assert dtypes_of(result) == {HALF if expected == "float16" else torch.float32}


def test_what_pytorch_expects_to_be_refused_is_refused(cuda: None) -> None:
    assert [case[0] for case in LISTS.banned] == ["binary_cross_entropy"]
    p = torch.rand(4)
    with region(), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(p, p)
    with region(), pytest.raises(RuntimeError, match="CUDA refuses it"):
        nn.BCELoss()(p, p)


# -- what lies above operators ----------------------------------------------------------------------------------------


class Norm(nn.Module):
    """A composite and a listed operator around a product."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = F.normalize(self.norm(self.linear(x)), dim=-1)
        return result


class InFloat32(torch.autograd.Function):
    seen: tuple[torch.dtype, ...] = ()

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        InFloat32.seen = (x.dtype, x.bfloat16().softmax(-1).dtype, (x @ x).dtype)
        return x @ x

    @staticmethod
    @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        return grad * 2


class TestAbove:
    def test_custom_functions_that_ask_for_float32_are_islands(self, cuda: None) -> None:
        x = torch.eye(3).half().requires_grad_()
        with region():
            out = InFloat32.apply(x)  # type: ignore[no-untyped-call]
        assert InFloat32.seen == (torch.float32, torch.bfloat16, torch.float32)
        assert out.dtype is torch.float32
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype is HALF

    def test_custom_functions_may_be_called_in_their_own_backward_region(self, cuda: None) -> None:
        seen: list[torch.dtype] = []

        class Recomputed(torch.autograd.Function):
            @staticmethod
            @custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
            def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                return x @ x

            @staticmethod
            @custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
            def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
                (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
                seen.extend([(x @ x).dtype, x.half().exp().dtype, grad.dtype])
                return grad.float()

        x = torch.eye(3, requires_grad=True)
        with region():
            out = Recomputed.apply(x)  # type: ignore[no-untyped-call]
        out.sum().backward()
        assert seen == [HALF, torch.float32, HALF]

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointed_blocks_recompute_with_the_same_dtypes_and_bits(self, reentrant: bool, cuda: None) -> None:
        torch.manual_seed(0)
        model, x = Norm(), torch.randn(4, 8, requires_grad=True)

        def gradients(recompute: bool) -> list[Tensor]:
            model.zero_grad()
            with region():
                out = checkpoint(model, x, use_reentrant=reentrant) if recompute else model(x)
                loss = F.cross_entropy(out, torch.arange(4))
            loss.backward()
            return [p.grad.clone() for p in model.parameters() if p.grad is not None]

        plain, again = gradients(False), gradients(True)
        assert len(plain) == 4
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))

    def test_nested_regions_and_islands(self, cuda: None) -> None:
        x = torch.randn(4, 4)
        with region():
            with region(torch.bfloat16):
                assert (x @ x).dtype is torch.bfloat16
                assert (x @ x).exp().dtype is torch.float32
                with region(enabled=False):
                    assert (x @ x).dtype is torch.float32
                    assert x.half().exp().dtype is HALF
                    with region():
                        assert x.half().exp().dtype is torch.float32
            assert (x @ x).dtype is HALF

    def test_composites_cast_where_cuda_does(self, cuda: None) -> None:
        """Each computes with listed operators inside its C++; what comes out is what they give."""
        x = torch.randn(4, 8).half()
        with region():
            got = {
                "normalize": F.normalize(x).dtype,
                "cosine_similarity": F.cosine_similarity(x, x).dtype,
                "var": x.var().dtype,
                "mean": x.mean().dtype,
                "std": x.std(0).dtype,
                "logsumexp": x.logsumexp(0).dtype,
                "gelu": F.gelu(x).dtype,
                "batch_norm": F.batch_norm(x, None, None, training=True).dtype,
                "instance_norm": F.instance_norm(x[None]).dtype,
                "layer_norm": F.layer_norm(x, (8,)).dtype,
                "log_softmax": F.log_softmax(x, -1).dtype,
                "add": (x + x.float()).dtype,
                "embedding": F.embedding(torch.tensor([0]), torch.ones(2, 2)).dtype,
            }
        sixteen = {"var", "mean", "std", "gelu", "batch_norm", "instance_norm"}
        assert {n for n, d in got.items() if d is HALF} == sixteen
        assert {d for n, d in got.items() if n not in sixteen} == {torch.float32}

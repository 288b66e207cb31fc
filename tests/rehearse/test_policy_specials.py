# SPDX-License-Identifier: Apache-2.0
"""Operators for which CPU autocast has a rule of its own and CUDA has none, or another one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from floatwise.rehearse.cuda_specials import AS_GIVEN, WITHOUT_RULE, CudaSpecials
from floatwise.rehearse.products import MatrixUnits
from floatwise.torch.cuda_policy import CudaPolicy

HALF = torch.float16
LOW = [torch.float16, torch.bfloat16]


@pytest.fixture
def cuda() -> Iterator[None]:
    """Everything that a rehearsal holds."""
    with CudaPolicy(), CudaSpecials(), MatrixUnits(LOW):
        yield


def region(dtype: torch.dtype = HALF, enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


GIVEN: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (1, 2, 4, 4, 4)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (1, 2, 4, 4, 4)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), (1, 2, 4, 4, 4)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), (1, 2, 4, 4, 4)),
    "fractional_max_pool2d": (lambda x: F.fractional_max_pool2d(x, 2, output_size=2), (1, 2, 5, 5)),
    "fractional_max_pool3d": (lambda x: F.fractional_max_pool3d(x, 2, output_size=2), (1, 2, 5, 5, 5)),
    "max_unpool2d": (lambda x: F.max_unpool2d(x, torch.tensor([[[[0, 3], [9, 15]]]]), [2, 2]), (1, 1, 2, 2)),
    "max_unpool3d": (lambda x: F.max_unpool3d(x, torch.arange(8).view(1, 1, 2, 2, 2), [2, 2, 2]), (1, 1, 2, 2, 2)),
    "reflection_pad1d": (lambda x: F.pad(x, (1, 1), "reflect"), (2, 4)),
    "reflection_pad2d": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), (2, 4, 4)),
    "replication_pad1d": (lambda x: F.pad(x, (1, 1), "replicate"), (2, 4)),
    "replication_pad2d": (lambda x: F.pad(x, (1, 1, 1, 1), "replicate"), (2, 4, 4)),
    "replication_pad3d": (lambda x: F.pad(x, (1,) * 6, "replicate"), (2, 4, 4, 4)),
    "grid_sampler": (lambda x: torch.grid_sampler(x, x.new_zeros(1, 2, 2, 2), 0, 0, False), (1, 1, 4, 4)),
    "grid_sampler_2d": (lambda x: torch.grid_sampler_2d(x, x.new_zeros(1, 2, 2, 2), 0, 0, False), (1, 1, 4, 4)),
    "grid_sampler_3d": (
        lambda x: torch.grid_sampler_3d(x, x.new_zeros(1, 2, 2, 2, 3), 0, 0, False),
        (1, 1, 4, 4, 4),
    ),
}


def test_outside_the_region_and_in_an_island_no_loss_is_refused(cuda: None) -> None:
    p = torch.rand(4)
    expected = F.binary_cross_entropy(p, p)
    with region(), region(enabled=False):
        assert torch.equal(F.binary_cross_entropy(p, p), expected)


def test_cross_entropy_rounds_its_log_probabilities(cuda: None) -> None:
    logits = torch.linspace(-3, 3, 12).view(3, 4).half()
    labels = torch.tensor([0, 1, 3])
    with region():
        loss = F.cross_entropy(logits, labels)
    rounded = logits.float().log_softmax(-1).half().float()
    assert loss.dtype is torch.float32
    assert torch.equal(loss, F.nll_loss(rounded, labels))
    assert not torch.equal(loss, F.cross_entropy(logits.float(), labels))


@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"reduction": "none"}, {"ignore_index": 1}])
def test_cross_entropy_in_all_its_forms(options: dict[str, Any], cuda: None) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 4).half().requires_grad_()
    labels = torch.tensor([0, 1, 3, 1, 2, 0])
    with region():
        loss = F.cross_entropy(logits, labels, **options)
    loss.sum().backward()
    exact = F.cross_entropy(logits.detach().double(), labels, **options)
    torch.testing.assert_close(loss.double(), exact, rtol=2e-3, atol=2e-3)
    assert logits.grad is not None
    assert logits.grad.dtype is HALF


@pytest.mark.parametrize("name", AS_GIVEN)
def test_pooling_padding_and_sampling_return_the_dtype_they_were_given(name: str, cuda: None) -> None:
    call, shape = GIVEN[name]
    torch.manual_seed(0)
    x = torch.randn(shape).half().requires_grad_()
    torch.manual_seed(1)
    expected = call(x.detach().float()).half()
    torch.manual_seed(1)
    with region():
        got = call(x)
        assert call(x.detach().float()).dtype is torch.float32
    assert torch.equal(got, expected)
    got.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is HALF


def test_sampling_takes_the_widest_dtype(cuda: None) -> None:
    with region():
        mixed = F.grid_sample(torch.ones(1, 1, 4, 4).half(), torch.zeros(1, 2, 2, 2), align_corners=False)
    assert mixed.dtype is torch.float32


def test_the_last_holder_restores_the_rules_of_the_cpu() -> None:
    p = torch.rand(4)
    one, two = CudaSpecials(), CudaSpecials()
    one.close()
    one.close()
    with region(), pytest.raises(RuntimeError, match="CUDA refuses it"):
        F.binary_cross_entropy(p, p)
    two.close()
    with region():
        assert F.binary_cross_entropy(p, p).dtype is torch.float32
        assert F.avg_pool3d(torch.ones(1, 2, 2, 2).half(), 2).dtype is torch.float32
    assert not two.active


# By the name in PyTorch's own table of operators, `op_db`.
WITHOUT_KERNEL: dict[str, Callable[[Tensor], Any]] = {
    "cholesky": torch.cholesky,
    "cholesky_inverse": torch.cholesky_inverse,
    "cholesky_solve": lambda x: torch.cholesky_solve(x, x),
    "geqrf": torch.geqrf,
    "linalg.cholesky": torch.linalg.cholesky,
    "linalg.cholesky_ex": torch.linalg.cholesky_ex,
    "linalg.cond": torch.linalg.cond,
    "linalg.eig": torch.linalg.eig,
    "linalg.eigh": torch.linalg.eigh,
    "linalg.eigvals": torch.linalg.eigvals,
    "linalg.eigvalsh": torch.linalg.eigvalsh,
    "linalg.householder_product": lambda x: torch.linalg.householder_product(x, x[0]),
    "linalg.inv": torch.inverse,
    "linalg.inv_ex": torch.linalg.inv_ex,
    "linalg.lstsq": lambda x: torch.linalg.lstsq(x, x),
    "linalg.matrix_rank": torch.linalg.matrix_rank,
    "linalg.qr": torch.linalg.qr,
    "linalg.solve": lambda x: torch.linalg.solve(x, x),
    "linalg.svd": torch.linalg.svd,
    "linalg.svdvals": torch.linalg.svdvals,
    "linalg.tensorinv": lambda x: torch.linalg.tensorinv(x, 1),
    "linalg.tensorsolve": lambda x: torch.linalg.tensorsolve(x, x[0]),
    "lu_solve": lambda x: torch.lu_solve(x, x, torch.ones(4, dtype=torch.int32)),
    "nanquantile": lambda x: torch.nanquantile(x, 0.5),
    "nn.functional.ctc_loss": lambda x: torch.ctc_loss(x[:, None], torch.tensor([[1]]), [4], [1]),
    "ormqr": lambda x: torch.ormqr(x, x[0], x),
    "pinverse": torch.pinverse,
    "polar": lambda x: torch.polar(x, x),
    "qr": torch.qr,
    "quantile": lambda x: torch.quantile(x, 0.5),
    "svd": torch.svd,
    "triangular_solve": lambda x: torch.triangular_solve(x, x),
}
OF_OTHER_NAME = {"_lu_with_info", "inverse", "orgqr", "cross_entropy_loss", "view_as_complex"}


@pytest.mark.filterwarnings("ignore:torch")
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", WITHOUT_KERNEL)
def test_what_has_no_16_bit_kernel_raises(name: str, dtype: torch.dtype, cuda: None) -> None:
    call, x = WITHOUT_KERNEL[name], torch.eye(4) * 2 + 0.1
    with region(dtype):
        call(x)
        with pytest.raises(RuntimeError):
            call(x.to(dtype))
        with region(enabled=False):
            call(x.to(dtype).float())


@pytest.mark.parametrize("name", ["linalg.inv", "quantile", "nn.functional.ctc_loss", "polar"])
def test_outside_a_rehearsal_it_keeps_the_rule_of_the_cpu(name: str) -> None:
    with CudaPolicy(), region():
        WITHOUT_KERNEL[name]((torch.eye(4) * 2 + 0.1).half())


def test_complex_views_are_of_16_bits_where_pytorch_has_them(cuda: None) -> None:
    x = torch.ones(4, 2)
    with region():
        assert torch.view_as_complex(x.half()).dtype is torch.complex32
        with pytest.raises(RuntimeError, match="half, float and double"):
            torch.view_as_complex(x.bfloat16())


def test_the_table_covers_the_list() -> None:
    names = {name.partition(".")[0] for name in WITHOUT_RULE}
    known = {name.removeprefix("nn.functional.").replace(".", "_") for name in WITHOUT_KERNEL}
    assert names == known | OF_OTHER_NAME


_PROGRAM = """
import sys, types, unittest
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))
import torch
from torch.testing._internal.common_methods_invocations import op_db
low = {torch.float16, torch.bfloat16}
print(*sorted({op.name for op in op_db if not low & set(op.dtypesIfCUDA)}))
"""


@pytest.mark.slow
def test_pytorchs_own_table_has_no_16_bit_kernel_for_them_on_cuda() -> None:
    # In a process of its own: PyTorch's test tools change its settings when they are imported.
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert set(WITHOUT_KERNEL) <= set(done.stdout.split())

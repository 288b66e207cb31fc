# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from floatwise.errors import PlanError
from floatwise.plan import recipe
from floatwise.torch import autocast_region
from floatwise.torch.region import float32_products

FORMATS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "fp16-mixed": torch.float16,
}


@pytest.mark.parametrize("name", FORMATS)
def test_products_have_the_plans_format_and_norms_float32(name: str) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast_region(recipe(name), "cpu"):
        product = linear(x)
        normed = product.softmax(-1)
    assert product.dtype is FORMATS[name]
    assert normed.dtype is torch.float32
    assert linear(x).dtype is torch.float32


def test_a_float32_plan_switches_autocast_off() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with autocast_region(recipe("fp32"), "cpu"):
            assert linear(x).dtype is torch.float32
        assert linear(x).dtype is torch.bfloat16


def test_all_is_undone_after_an_exception() -> None:
    with pytest.raises(KeyError), autocast_region(recipe("bf16-mixed"), "cpu"):
        raise KeyError
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ones(2, dtype=torch.bfloat16).exp().dtype is torch.bfloat16


def test_the_compilers_backward_setting_is_back_afterwards() -> None:
    config: Any = torch._functorch.config
    before = config.backward_pass_autocast
    with autocast_region(recipe("bf16-mixed"), "cpu"):
        assert config.backward_pass_autocast == "off"
    assert config.backward_pass_autocast == before


def test_float8_is_refused() -> None:
    with pytest.raises(PlanError, match="float8"), autocast_region(recipe("fp8-tensorwise"), "cpu"):
        pass


def _new_tf32() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def _conv_ieee() -> None:
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def _no_cudnn_tf32() -> None:
    torch.backends.cudnn.allow_tf32 = False


CALLERS: dict[str, Callable[[], Any]] = {
    "as PyTorch starts": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "new switch": _new_tf32,
    "new switch for convolutions": _conv_ieee,
    "old switch for convolutions": _no_cudnn_tf32,
}


def _switches() -> dict[str, str]:
    backends: Any = torch.backends
    reads: dict[str, Callable[[], Any]] = {
        "matmul": lambda: backends.cuda.matmul.fp32_precision,
        "conv": lambda: backends.cudnn.conv.fp32_precision,
        "rnn": lambda: backends.cudnn.rnn.fp32_precision,
        "mkldnn": lambda: backends.mkldnn.matmul.fp32_precision,
        "old matmul": lambda: backends.cuda.matmul.allow_tf32,
        "old cudnn": lambda: backends.cudnn.allow_tf32,
        "level": torch.get_float32_matmul_precision,
    }
    return {name: _read(read) for name, read in reads.items()}


def _read(read: Callable[[], Any]) -> str:
    try:
        return str(read())
    except RuntimeError:
        return "the old and the new switch disagree"


@pytest.fixture
def _switches_restored() -> Iterator[None]:
    with float32_products("ieee", "cuda"):
        yield


@pytest.mark.usefixtures("_switches_restored")
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("how", "matmul", "allowed"), [("tf32", "tf32", "True"), ("ieee", "ieee", "False")], ids=["tf32", "ieee"]
)
def test_switches_agree_inside_and_are_as_before_outside(caller: str, how: Any, matmul: str, allowed: str) -> None:
    CALLERS[caller]()
    before = _switches()
    with float32_products(how, "cuda"):
        inside = _switches()
    assert inside["matmul"] == matmul
    assert inside["old matmul"] == inside["old cudnn"] == allowed
    assert (inside["conv"] == "tf32") == (how == "tf32")
    assert _switches() == before


def test_the_cpu_has_no_such_switches() -> None:
    before = _switches()
    with float32_products("tf32", "cpu"):
        assert _switches() == before

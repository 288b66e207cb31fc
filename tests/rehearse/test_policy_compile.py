# SPDX-License-Identifier: Apache-2.0
"""A compiled model follows the rules it runs under, not those it was traced under."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.products import MatrixUnits

# torch.compile imports parts of torch that warn of their own deprecation.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LOW = torch.bfloat16


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def pooled() -> Tensor:
    return F.avg_pool3d(torch.ones(1, 2, 2, 2, 2, dtype=LOW), 2)


def entropy() -> Tensor:
    return F.cross_entropy(torch.linspace(-3, 3, 12).view(3, 4).to(LOW), torch.tensor([0, 1, 3]))


CELL = nn.GRUCell(4, 4)


def recurrent() -> Tensor:
    state: Tensor = CELL(torch.ones(2, 4), torch.ones(2, 4))
    return state


@pytest.mark.parametrize(
    ("hold", "function"), [(CudaSpecials, pooled), (CudaSpecials, entropy), (MatrixUnits, recurrent)]
)
def test_no_graph_is_used_again_under_other_rules(
    hold: Callable[[], AbstractContextManager[Any]], function: Callable[[], Tensor]
) -> None:
    compiled = torch.compile(function, backend="aot_eager")
    eager: list[Tensor] = []
    for held in (False, True, False, True):
        with hold() if held else nullcontext(), torch.autocast("cpu", dtype=LOW), torch.no_grad():
            eager.append(function())
            traced = compiled()
        assert traced.dtype is eager[-1].dtype
        assert torch.equal(traced, eager[-1])
    assert eager[0].dtype is not eager[1].dtype or not torch.equal(eager[0], eager[1]), "the rules should differ"


_PROGRAM = """
import sys, torch
from floatwise.rehearse.cuda_specials import CudaSpecials
if sys.argv[1] == "held":
    CudaSpecials()
pooled = torch.compile(lambda x: torch.nn.functional.avg_pool3d(x, 2) * 2)
with torch.autocast("cpu", dtype=torch.bfloat16):
    print(pooled(torch.ones(1, 2, 2, 2, 2).bfloat16()).dtype)
"""


@pytest.mark.slow
def test_nor_from_the_cache_on_disk(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def dtype(held: str) -> str:
        command = [sys.executable, "-c", _PROGRAM, held]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    kinds = [dtype(held) for held in ("not held", "held", "not held")]
    assert kinds == ["torch.float32", "torch.bfloat16", "torch.float32"]

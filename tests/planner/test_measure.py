# SPDX-License-Identifier: Apache-2.0
"""The comparison of final losses, and the measurement of a real script."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from floatwise.errors import ScriptError
from floatwise.plan import recipe
from floatwise.planner.measure import loss_parity, measure

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.randn(64, 16)
for step in range({steps}):
    optimizer.zero_grad()
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("planned", "float32", "within"),
    [
        ([1.0] * 5, [[1.0] * 5, [1.2] * 5, [0.9] * 5], True),
        ([1.25] * 5, [[1.0] * 5, [1.2] * 5, [0.9] * 5], True),
        ([1.35] * 5, [[1.0] * 5, [1.2] * 5, [0.9] * 5], False),
        ([1.004] * 5, [[1.0] * 5] * 3, True),
        ([1.02] * 5, [[1.0] * 5] * 3, False),
        ([math.nan] * 5, [[1.0] * 5, [1.2] * 5], False),
        ([5.0, 1.0, 1.0, 1.0, 1.0, 1.0], [[9.0, 1.0, 1.0, 1.0, 1.0, 1.0]] * 2, True),
        ([2.0], [[2.0], [2.1]], True),
    ],
)
def test_loss_parity(planned: list[float], float32: list[list[float]], within: bool) -> None:
    parity = loss_parity(planned, float32)
    assert parity is not None
    assert parity.within_spread is within
    assert parity.spread[0] < parity.float32[0] < parity.spread[1]


def test_no_parity_without_losses() -> None:
    assert loss_parity([math.nan], [[math.nan], [1.0]]) is None


@pytest.mark.slow
def test_measures_a_script_side_by_side(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(steps=100))
    seen: list[str] = []
    result = measure(recipe("bf16-mixed"), str(script), (), 12, "here", lambda what, done, total: seen.append(what))
    assert len(result.losses["planned"]) == len(result.losses["float32"]) == 12
    assert result.steps == 12 - 3
    assert result.losses["planned"] != result.losses["float32"]
    assert result.loss_parity is not None
    assert result.loss_parity.within_spread
    assert result.memory_ratio is not None
    assert set(seen) == {"measure", "seed 1", "seed 2"}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [6, 4])
def test_short_scripts(tmp_path: Path, steps: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(steps=steps))
    result = measure(recipe("bf16-mixed"), str(script), (), 20, "here", lambda *_: None)
    assert result.steps == steps - 3
    assert result.planned_bytes is not None


@pytest.mark.slow
def test_too_short_to_measure(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(steps=2))
    with pytest.raises(ScriptError, match="--no-measure"):
        measure(recipe("bf16-mixed"), str(script), (), 20, "here", lambda *_: None)

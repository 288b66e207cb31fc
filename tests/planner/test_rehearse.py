# SPDX-License-Identifier: Apache-2.0
"""Scripts rehearsed for real: what recorded values cannot show, the rehearsal finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from floatwise.hardware import get_device
from floatwise.plan import recipe
from floatwise.planner import Rehearsed, Target, decide_all, record, rehearse_for
from floatwise.planner.rehearse import rehearse

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "scripts"

ROTARY = """
import sys
sys.path.insert(0, {root!r})
import torch
from tests.rehearse.cases.planted import PLANTED

torch.manual_seed(0)
training = PLANTED["rotary"].make()
for step in range(20):
    training.optimizer.zero_grad()
    loss = training.loss(step)
    loss.backward()
    training.optimizer.step()
"""


def quiet(what: str, done: int, steps: int) -> None:
    """Tells nobody."""


@pytest.mark.slow
def test_angles_rounded_to_bfloat16_become_an_island_and_speed_and_memory_are_predicted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ROTARY.format(root=str(ROOT)), encoding="utf-8")
    recording = record(str(script), (), 6, str(tmp_path / "train.recording"), quiet)
    targets = [Target(get_device("a100"), here=False), Target(get_device("p100"), here=False)]
    seen: list[tuple[str, int, int]] = []
    known = rehearse_for(recording, targets, 6, Rehearsed(), lambda *told: seen.append(told))
    assert {what for what, _, _ in seen} == {"rehearse float32", "rehearse bf16-mixed"}
    a100, p100 = decide_all(recording, targets, 6, known)
    mixed = next(verdict for verdict in a100.verdicts if verdict.recipe == "bf16-mixed")
    assert [island.module for island in mixed.islands] == ["blocks.1.attention.rotary"]
    predicted = mixed.predicted
    assert predicted is not None
    assert predicted.speed is not None
    assert predicted.speed.low <= predicted.speed.ratio <= predicted.speed.high < 1.05
    assert 0.4 < predicted.memory_ratio < 1.1
    assert (mixed.status, a100.recipe) == ("not_worth_it", "fp32"), "a model of this size is faster in float32"
    assert p100.recipe == "fp32"


@pytest.mark.slow
def test_a_script_that_fails_when_its_values_are_rounded_refuses_the_recipe(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "seen = []\n"
        "model.register_forward_hook(lambda m, i, o: seen.append(o.dtype))\n"
        "for step in range(6):\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(torch.randn(8, 64)).square().mean()\n"
        "    if torch.bfloat16 in seen:\n"
        "        raise TypeError('only float32 here')\n"
        "    loss.backward()\n"
        "    optimizer.step()\n",
        encoding="utf-8",
    )
    plans = [recipe("bf16-mixed"), recipe("fp16-mixed")]
    known = rehearse(Rehearsed(), plans, str(script), (), 4, quiet)
    assert "train.py:10" in known.failures["bf16-mixed"]
    assert known.verdicts["fp16-mixed"].status == "accept"
    assert len(known.losses) == 4
    assert known.seed_losses is not None
    assert len(known.seed_losses) == 2

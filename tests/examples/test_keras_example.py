# SPDX-License-Identifier: Apache-2.0
"""The Keras example on each backend: it learns, and under a plan it learns the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")
pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digits_cnn_keras.py"
#: Runs the plan's runtime as the command line does, which also finds out the framework.
RUN = """
import sys
from floatwise.keras.script.run import run_under_plan
from floatwise.plan import recipe
sys.exit(run_under_plan(recipe(sys.argv[1]), sys.argv[2], sys.argv[3:]))
"""


def last_loss(output: str) -> float:
    return float(re.findall(r"loss ([0-9.]+)", output)[-1])


def accuracy(output: str) -> float:
    return float(re.findall(r"test accuracy ([0-9.]+)", output)[-1])


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_digits_cnn_keras_learns_in_bfloat16_what_it_learns_in_float32(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    few = ["--epochs", "4"]
    plain, under = (
        subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
        for command in ([str(SCRIPT), *few], ["-c", RUN, "bf16-mixed", str(SCRIPT), *few])
    )
    assert "floatwise: bf16-mixed: 48 optimizer steps\n" in under.stderr
    assert last_loss(under.stdout) == pytest.approx(last_loss(plain.stdout), abs=0.1)
    assert accuracy(plain.stdout) > 0.7
    assert accuracy(under.stdout) == pytest.approx(accuracy(plain.stdout), abs=0.15)

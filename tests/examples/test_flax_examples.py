# SPDX-License-Identifier: Apache-2.0
"""The Flax examples: they train alone, and under a plan to the same loss and accuracy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flax")
pytest.importorskip("optax")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.slow

#: As `floatwise run` does, without the start of the whole command.
UNDER = (
    "import sys; from floatwise.jax.script.run import run_under_plan; from floatwise.plan import recipe; "
    "sys.exit(run_under_plan(recipe(sys.argv[1]), sys.argv[2], sys.argv[3:]))"
)


def trained(cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=300, check=True)


def number(pattern: str, output: str) -> float:
    return float(re.findall(pattern + r" ([0-9.]+)", output)[-1])


def test_digits_cnn_reaches_float32_accuracy_in_bfloat16(tmp_path: Path) -> None:
    script = (str(EXAMPLES / "digits_cnn_flax.py"), "--epochs", "3")
    plain = number("test accuracy", trained(tmp_path, *script).stdout)
    under = trained(tmp_path, "-c", UNDER, "bf16-mixed", *script)
    assert plain > 0.95
    assert number("test accuracy", under.stdout) == pytest.approx(plain, abs=0.02)
    assert "bf16-mixed: 33 gradients\n" in under.stderr


def test_text_gpt_trains_in_float16_as_in_float32(tmp_path: Path) -> None:
    small = (
        "--steps",
        "20",
        "--width",
        "64",
        "--layers",
        "1",
        "--heads",
        "2",
        "--context",
        "64",
        "--eval-batches",
        "2",
    )
    script = (str(EXAMPLES / "text_gpt_flax.py"), *small)
    plain = number("validation loss", trained(tmp_path, *script, "--out", "weights.msgpack").stdout)
    under = trained(tmp_path, "-c", UNDER, "fp16-mixed", *script)
    assert plain < 4.0  # 4.6 is that of guessing among 103 characters
    assert number("validation loss", under.stdout) == pytest.approx(plain, abs=0.05)
    assert "fp16-mixed: 20 gradients, " in under.stderr
    assert (tmp_path / "weights.msgpack").stat().st_size > 4 * 50_000

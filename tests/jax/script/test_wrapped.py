# SPDX-License-Identifier: Apache-2.0
"""What JAX and functools make of compiled functions stays what the script means, under every plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from floatwise.jax.script.run import run_under_plan
from floatwise.plan import recipe
from floatwise.tap.execute import run_script

WRAPPED = """
import functools, jax, jax.numpy as jnp

def f(x):
    return (x * x).sum()

@functools.wraps(f)
def more(x):
    return f(x) + 1

class Net:
    def plain(self, x):
        return 3 * f(x)
    compiled = jax.jit(plain, static_argnums=0)

x, net = jnp.arange(4.0), Net()
print(float(jax.jit(f)(x)), jax.jit(jax.vmap(f))(x[:, None]).tolist(), float(jax.jit(more)(x)))
value, grads = jax.jit(jax.value_and_grad(f))(x)
print(float(value), grads.tolist(), float(net.compiled(x)), float(jax.jit(net.plain)(x)))
"""
LOW_LOSS = """
import jax, jax.numpy as jnp
loss, grads = jax.jit(jax.value_and_grad(lambda p: ((p @ p) ** 2).mean().astype(jnp.bfloat16)))(jnp.eye(4) / 2)
print(loss.dtype, grads.dtype, grads.trace())
"""
DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
print(len(jax.devices()), jax.jit(jax.grad(lambda x: x * x))(3.0))
"""


@pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_what_wraps_a_compiled_function_is_another_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WRAPPED)
    run_script(str(script), [])
    alone = capsys.readouterr().out
    assert run_under_plan(recipe(name), str(script), []) == 0
    assert capsys.readouterr().out == alone
    assert alone.splitlines()[1] == "14.0 [0.0, 2.0, 4.0, 6.0] 42.0 42.0"


def test_a_loss_in_bfloat16_can_be_scaled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOW_LOSS)
    assert run_under_plan(recipe("fp16-mixed"), str(script), []) == 0
    assert capsys.readouterr().out.split() == ["bfloat16", "float32", "0.125"]


def test_a_script_may_choose_its_devices_before_its_first_gradient(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DEVICES)
    command = [sys.executable, "-m", "floatwise", "run", str(script), "--recipe", "fp16-mixed"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.split()) == (0, ["2", "6.0"]), ran.stderr

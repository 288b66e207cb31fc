# SPDX-License-Identifier: Apache-2.0
"""The formats of products: what the program asks for, what the CPU's compiler makes of it, and where."""

from __future__ import annotations

import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import floatwise as fw
from floatwise.census import compiled_operators

HERE = __file__


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{next(first + i for i, line in enumerate(lines) if text in line)}"


def loss(p: Any, x: jax.Array) -> jax.Array:
    h = jax.nn.relu(x @ p["a"])
    h = jax.lax.conv(h.reshape(2, 4, 8, 8), p["c"], (1, 1), "SAME")
    out = h.reshape(2, -1) @ p["b"]
    return jnp.square(out).astype(jnp.float32).sum()


def params(dtype: str = "float32") -> Any:
    shapes = {"a": (64, 256), "c": (4, 4, 3, 3), "b": (256, 8)}
    return {name: jnp.ones(shape, dtype) for name, shape in shapes.items()}


X = jnp.ones((2, 64))


def test_forward_products_have_formats_shapes_and_lines() -> None:
    census = fw.jax.operator_dtypes(fw.jax.cast(loss, "c=bf16"), params(), X, compiled=False)
    assert [(row.name, row.operands, row.result) for row in census.traced] == [
        (name, ("bfloat16", "bfloat16"), "bfloat16") for name in ("dot", "convolution", "dot")
    ]
    assert [row.shapes for row in census.traced] == [
        ((2, 64), (64, 256)),
        ((2, 4, 8, 8), (4, 4, 3, 3)),
        ((2, 256), (256, 8)),
    ]
    assert [row.multiplications for row in census.traced] == [2 * 64 * 256, 2 * 256 * 36, 2 * 256 * 8]
    assert [row.where for row in census.traced] == [
        line_of(loss, 'p["a"]'),
        line_of(loss, "conv("),
        line_of(loss, 'p["b"]'),
    ]
    assert census.compiled is None
    assert str(census.traced[0]).startswith("1 x dot: bfloat16[2, 64] * bfloat16[64, 256] -> bfloat16[2, 256]  (")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="it is about the CPU's compiler")
def test_on_the_cpu_16_bits_are_intent_and_float32_is_fact(dtype: str) -> None:
    census = fw.jax.operator_dtypes(jax.grad(fw.jax.cast(loss, f"compute={dtype}")), params(), X)
    assert census.backend == "cpu"
    assert census.formats() == {f"{dtype}*{dtype}": 8}
    assert census.share(dtype) == 1
    assert census.compiled is not None
    wide = sum(row.count for row in census.compiled if set(row.operands) == {"float32"})
    # Every product of float16, and of bfloat16 at least those that give the weights' gradients.
    assert wide == 8 if dtype == "float16" else wide >= 3
    assert census.share(dtype, compiled=True) < 0.5
    (finding,) = census.findings
    assert finding.code == "products_widened"
    assert str(finding).startswith(f"100% of the multiplications are asked for in {dtype}, but on this backend (cpu) ")
    known = {line_of(loss, part) for part in ('p["a"]', "conv(", 'p["b"]')}
    assert {row.where for row in census.compiled if row.name == "dot"} <= known


def test_the_compiler_agrees_on_how_much_there_is_to_multiply() -> None:
    census = fw.jax.operator_dtypes(loss, params(), X)
    assert census.findings == ()
    assert census.compiled is not None
    assert sum(row.multiplications * row.count for row in census.compiled) == sum(
        row.multiplications * row.count for row in census.traced
    )


def test_a_scan_counts_its_turns_and_jitted_parts_are_seen() -> None:
    @jax.jit
    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return h @ w, None

    census = fw.jax.operator_dtypes(lambda h, w: jax.lax.scan(layer, h, w), jnp.ones((2, 4)), jnp.ones((5, 4, 4)))
    assert [(row.count, row.operands) for row in census.traced] == [(5, ("float32", "float32"))]


def test_models_with_functions_and_shapes_alone_will_do() -> None:
    model = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    census = fw.jax.operator_dtypes(
        fw.jax.cast(lambda m, x: jax.vmap(m)(x), "c=bf16"), model, jax.eval_shape(lambda: jnp.ones((3, 4)))
    )
    assert census.formats() == {"bfloat16*bfloat16": 2}


GPU_TEXT = """HloModule jit_f
ENTRY %main.5 (p0: bf16[8,16], p1: bf16[16,4]) -> bf16[8,4] {
  %p0 = bf16[8,16]{1,0} parameter(0)
  %p1 = bf16[16,4]{1,0} parameter(1)
  %gemm.1 = (bf16[8,4]{1,0}, s8[1024]{0}) custom-call(%p0, %p1), custom_call_target="__cublas$gemm", metadata={\
op_name="jit(f)/dot_general" source_file="train.py" source_line=7}
  %other = f32[8,4]{1,0} custom-call(bf16[8,16]{1,0} %p0), custom_call_target="TopK"
  ROOT %out = bf16[8,4]{1,0} get-tuple-element(%gemm.1), index=0
}
"""


def test_library_routines_are_products_too() -> None:
    (row,) = compiled_operators(GPU_TEXT)
    assert (row.name, row.operands, row.shapes, row.result) == (
        "__cublas$gemm",
        ("bfloat16", "bfloat16"),
        ((8, 16), (16, 4)),
        "bfloat16",
    )
    assert row.where == "train.py:7"

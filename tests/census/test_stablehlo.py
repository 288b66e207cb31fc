# SPDX-License-Identifier: Apache-2.0
"""Products read from a lowered program's text."""

from __future__ import annotations

import pytest

from floatwise.census.operator import share, to_message
from floatwise.census.stablehlo import stablehlo_operators

TEXT = """
module @jit_step attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xbf16>, %arg1: tensor<16x4xbf16>) -> (tensor<8x4xf32> {jax.result_info = ""}) {
    %0 = call @layer(%arg0) : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
    %1 = call @layer(%0) : (tensor<8x16xbf16>) -> tensor<8x16xbf16>
    %2 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xbf16>, tensor<16x4xbf16>) -> tensor<8x4xf32>
    return %2 : tensor<8x4xf32>
  }
  func.func private @layer(%arg0: tensor<8x16xbf16>) -> tensor<8x16xbf16> {
    %0 = stablehlo.constant dense<1.0> : tensor<16x16xbf16>
    %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [1] x [0] : (tensor<8x16xbf16>, tensor<16x16xbf16>) -> tensor<8x16xbf16>
    return %1 : tensor<8x16xbf16>
  }
  func.func private @never(%arg0: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %1 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    return %1 : tensor<2x2xf32>
  }
}
"""  # noqa: E501


def test_a_function_counts_as_often_as_it_is_called() -> None:
    rows = stablehlo_operators(TEXT)
    assert [(row.count, row.operands, row.result, row.multiplications) for row in rows] == [
        (1, ("bfloat16", "bfloat16"), "float32", 8 * 16 * 4),
        (2, ("bfloat16", "bfloat16"), "bfloat16", 8 * 16 * 16),
    ]


def test_shares_are_of_multiplications() -> None:
    rows = stablehlo_operators(TEXT.replace("tensor<16x4xbf16>) ->", "tensor<16x4xf32>) ->"))
    assert share(rows, "bfloat16") == pytest.approx(8 / 9)
    told = to_message(rows)
    assert told["bfloat16"] == {"count": 2, "share": pytest.approx(8 / 9)}
    assert told["bfloat16 × float32"] == {"count": 1, "share": pytest.approx(1 / 9)}


@pytest.mark.slow
def test_what_jax_lowers_today_is_read() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def step(x: object, kernel: object) -> object:
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.einsum("nhwc,dc->nhwd", y, jnp.ones((5, 4), y.dtype))

    args = jnp.ones((2, 8, 8, 3), jnp.bfloat16), jnp.ones((3, 3, 3, 4), jnp.bfloat16)
    rows = stablehlo_operators(jax.jit(step).lower(*args).as_text())
    assert {(row.name, row.operands, row.multiplications) for row in rows} == {
        ("convolution", ("bfloat16", "bfloat16"), 2 * 6 * 6 * 4 * 27),
        ("dot", ("bfloat16", "bfloat16"), 2 * 6 * 6 * 5 * 4),
    }

# SPDX-License-Identifier: Apache-2.0
"""`fw.keras.operator_dtypes`: the same products are found on the three backends, and what XLA makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.running import run_program

pytest.importorskip("keras")

PROGRAM = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import keras
from keras import layers
import floatwise as fw

model = keras.Sequential([
    keras.Input((8, 8, 2)),
    layers.Conv2D(4, 3),
    layers.BatchNormalization(),
    layers.Reshape((36, 4)),
    layers.EinsumDense("abc,cd->abd", output_shape=(36, 6)),
    layers.Dense(3),
    layers.Flatten(),
    layers.Dense(3),
])
x = np.ones((2, 8, 8, 2), "float32")
found = {}

def row(census):
    return {
        "formats": census.formats(), "ran": None if census.compiled is None else census.formats(True),
        "work": {name: sum(r.multiplications * r.count for r in census.traced if set(r.operands) == {name})
                 for name in ("bfloat16", "float32")},
        "findings": [f.code for f in census.findings], "backend": census.backend, "message": census.to_message(),
    }

model.compile("adam", "mse")
fw.keras.apply(model, "bf16-mixed")
before = [v.numpy().tolist() for v in model.non_trainable_variables]
found["bf16"] = row(fw.keras.operator_dtypes(model, x))
found["state kept"] = before == [v.numpy().tolist() for v in model.non_trainable_variables]
fw.keras.apply(model, "fp32")
found["fp32"] = row(fw.keras.operator_dtypes(model, x))
found["traced"] = row(fw.keras.operator_dtypes(model, x, compiled=False))
if keras.backend.backend() == "tensorflow":
    model.compile("adam", "mse", jit_compile=True)
    fw.keras.apply(model, "bf16-mixed")
    found["xla"] = row(fw.keras.operator_dtypes(model, x))
print(json.dumps(found))
"""

#: Multiplications of forward and backward: the convolution has an input gradient too, the first layer's is not needed.
CONVOLUTION = 2 * 6 * 6 * 4 * 18
EINSUM, DENSE, HEAD = 2 * 36 * 4 * 6, 2 * 36 * 6 * 3, 2 * 108 * 3


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    return {"name": request.param} | run_program(PROGRAM, folder, KERAS_BACKEND=request.param)


def test_a_plans_products_are_in_its_format_and_the_head_is_not(found: Any) -> None:
    bf16 = found["bf16"]
    assert bf16["work"]["float32"] == 3 * HEAD
    assert bf16["work"]["bfloat16"] in (2 * CONVOLUTION + 3 * (EINSUM + DENSE), 3 * (CONVOLUTION + EINSUM + DENSE))
    assert set(bf16["formats"]) == {"bfloat16*bfloat16", "float32*float32"}
    assert found["state kept"]


def test_in_float32_all_are_float32(found: Any) -> None:
    assert set(found["fp32"]["formats"]) == {"float32*float32"}
    assert found["traced"]["ran"] is None
    assert found["traced"]["formats"] == found["fp32"]["formats"]


def test_what_xla_makes_of_them_is_told(found: Any) -> None:
    compiled = {"tensorflow": found.get("xla"), "jax": found["bf16"], "torch": None}[found["name"]]
    if compiled is None:
        assert found["bf16"]["ran"] is None
        return
    assert compiled["backend"] in ("cpu", "gpu")
    assert sum(compiled["ran"].values()) > 0
    assert ("products_widened" in compiled["findings"]) is ("bfloat16*bfloat16" not in compiled["ran"])
    asked = compiled["message"]["asked"]
    assert sum(row["share"] for row in asked.values()) == pytest.approx(1)

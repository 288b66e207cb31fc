# SPDX-License-Identifier: Apache-2.0
"""The exported Keras source on its backends: dtypes from tensors, the LossScaleOptimizer once, and its scale."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.running import run_program

from floatwise.exporters import export_plan, get_system
from floatwise.plan import LossScale, ModulePolicy, Policy, recipe

pytest.importorskip("keras")
pytestmark = [pytest.mark.slow]

BACKENDS = ("tensorflow", "jax", "torch")
MODULES = (
    ModulePolicy(module="block.**", policy=Policy(compute_dtype="float32")),
    ModulePolicy(module="block.inner", policy=Policy(compute_dtype="float16")),
)
SCALE = LossScale(initial_scale=1024.0, growth_interval=100)

CODE = """
import json
import numpy as np
import keras

def short(dtype):
    return keras.backend.standardize_dtype(dtype)

class Seen(keras.layers.Layer):
    # Notes the dtype that arrives, before any cast of its own.
    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
    def call(self, x):
        self.seen = short(x.dtype)
        return x

def model(space, name="net"):
    inputs = keras.Input((8,))
    first = keras.layers.Dense(16, activation="relu", name="first")
    inner = [keras.layers.Dense(16, name="inner"), keras.layers.LayerNormalization(name="norm")]
    block = keras.Sequential(inner, name="block")
    seen = [Seen(name="after_first"), Seen(name="after_block")]
    outputs = keras.layers.Dense(4, name="head")(seen[1](block(seen[0](first(inputs)))))
    outputs = space["in_float32"](outputs) if "in_float32" in space else outputs
    return keras.Model(inputs, outputs, name=name), seen

def wrapped(optimizer, count=0):
    inner = getattr(optimizer, "inner_optimizer", None)
    return wrapped(inner, count + 1) if inner is not None else count

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 8)).astype("float32"), RNG.normal(size=(16, 4)).astype("float32")

def run(source):
    keras.config.set_dtype_policy("float32")
    space = {}
    exec(source, space)
    net, seen = model(space)
    optimizer = keras.optimizers.Adam(1e-2)
    net.compile(optimizer=space["scaled"](optimizer) if "scaled" in space else optimizer, loss="mse")
    losses = net.fit(X, Y, epochs=3, batch_size=16, verbose=0).history["loss"]
    found = {
        "seen": [layer.seen for layer in seen],
        "output": short(net(X).dtype),
        "layers": {layer.name: layer.compute_dtype for layer in net._flatten_layers() if layer.weights},
        "variables": sorted({short(v.dtype) for v in net.variables if "seed" not in v.path}),
        "states": sorted({short(v.dtype) for v in net.optimizer.variables if len(v.shape)}),
        "wrapped": wrapped(net.optimizer),
        "losses": losses,
    }
    if found["wrapped"]:
        scale = lambda: float(net.optimizer.dynamic_scale)
        found["scales"], before = [scale()], int(net.optimizer.iterations)
        net.fit(X * np.float32(1e30), Y, epochs=1, batch_size=16, verbose=0)
        found["scales"].append(scale())
        found["stepped"] = int(net.optimizer.iterations) - before
    return found

def traps():
    found = {}
    policy = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_float16")
    for name, value in {"string": "mixed_float16", "map": policy, "pure": "float16"}.items():
        keras.config.set_dtype_policy(value)
        net, _ = model({}, "trap")
        net.compile(optimizer="sgd", loss="mse")
        found[name] = wrapped(net.optimizer)
    keras.config.set_dtype_policy("mixed_float16")
    net, _ = model({}, "trap")
    lso = keras.optimizers.LossScaleOptimizer
    net.compile(optimizer=lso(lso(keras.optimizers.SGD(0.1))), loss="mse")
    found["twice"] = wrapped(net.optimizer)
    default = lso(keras.optimizers.SGD(0.1))
    found["default"] = [default.initial_scale, default.dynamic_growth_steps]
    return found
"""


@pytest.fixture(scope="module", params=BACKENDS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trains three exported plans on one backend in one process."""
    pytest.importorskip(request.param)
    plans = {
        "bf16": recipe("bf16-mixed"),
        "fp16": recipe("fp16-mixed", loss_scale=SCALE),
        "islands": recipe("fp16-mixed", modules=MODULES, loss_scale=SCALE),
    }
    sources = {name: export_plan(plan, get_system("keras")).text for name, plan in plans.items()}
    code = f"""{CODE}
print(json.dumps({{**{{name: run(source) for name, source in {sources!r}.items()}}, "traps": traps()}}))
"""
    folder = tmp_path_factory.mktemp(request.param)
    return run_program(code, folder, KERAS_BACKEND=request.param, TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu")


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("bf16", ["bfloat16", "bfloat16"]),
        ("fp16", ["float16", "float16"]),
        ("islands", ["float16", "float32"]),
    ],
)
def test_layers_compute_as_the_plan_says_and_variables_are_float32(trained: Any, name: str, seen: list[str]) -> None:
    found = trained[name]
    assert found["seen"] == seen
    assert found["output"] == "float32"
    assert (found["variables"], found["states"]) == (["float32"], ["float32"])
    assert found["losses"][-1] < found["losses"][0]


def test_the_later_entry_wins_where_two_globs_cover_a_layer(trained: Any) -> None:
    layers = trained["islands"]["layers"]
    assert (layers["first"], layers["inner"], layers["norm"], layers["head"]) == (
        "float16",
        "float16",
        "float32",
        "float16",
    )


@pytest.mark.parametrize(("name", "count"), [("bf16", 0), ("fp16", 1), ("islands", 1)])
def test_the_optimizer_is_wrapped_exactly_once(trained: Any, name: str, count: int) -> None:
    assert trained[name]["wrapped"] == count


@pytest.mark.parametrize("name", ["fp16", "islands"])
def test_an_overflow_halves_the_scale_and_skips_the_step(trained: Any, name: str) -> None:
    assert trained[name]["scales"] == [1024.0, 512.0]
    assert trained[name]["stepped"] == 0


def test_compile_wraps_by_the_policys_name_only_and_accepts_a_second_wrap(trained: Any) -> None:
    assert trained["traps"] == {"string": 1, "map": 0, "pure": 0, "twice": 2, "default": [2.0**15, 2000]}

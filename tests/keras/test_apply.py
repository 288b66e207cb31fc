# SPDX-License-Identifier: Apache-2.0
"""`fw.keras.apply` on the three backends: each fault is first shown with Keras alone, then gone under a plan.

One child per backend, since a process has one; the tests below read what it found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import run_program

pytest.importorskip("keras")
pytestmark = [pytest.mark.slow]

PROGRAM = """
import json, os, sys, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import keras
from keras import layers, ops
import floatwise as fw
from floatwise.plan import LossScale, ModulePolicy, Policy, recipe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)).astype("float32")
Y = X.sum(1, keepdims=True).astype("float32")
set_global = keras.config.set_dtype_policy
found = {}
assert callable(fw.keras.load_model) and callable(fw.keras.apply)

def chain(optimizer):
    inner = getattr(optimizer, "inner_optimizer", None)
    return [type(optimizer).__module__.split(".")[0] + "." + type(optimizer).__name__] + (chain(inner) if inner else [])

def net(**options):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu", **options), layers.Dense(1)])

def compiled(model):
    model.compile(keras.optimizers.Adam(1e-2, clipnorm=1.0), "mse", metrics=["mae"])
    return model

def fit(model, epochs=1, x=X, **options):
    return model.fit(x, Y, epochs=epochs, batch_size=16, verbose=0, shuffle=False, **options).history

def finite(value):
    return bool(np.isfinite(np.asarray(ops.convert_to_numpy(value), "float32")).all())

class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.scaling, self.first, self.last = layers.Rescaling(1e-5), layers.Dense(16), layers.Dense(1)
    def call(self, x):
        return self.last(self.first(self.scaling(x)))

# The rows of the table "when compile() adds LossScaleOptimizer".
def with_global(name, make=net):
    set_global(name)
    model = make()
    set_global("float32")
    return compiled(model)

def loaded(saved_under, under, path):
    set_global(saved_under)
    model = compiled(net())
    model.optimizer.build(model.trainable_variables)
    model.save(path)
    set_global(under)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = keras.saving.load_model(path)
    set_global("float32")
    return model

def after_build():
    model = net()
    set_global("mixed_float16")
    compiled(model)
    set_global("float32")
    return model

def backbone():
    set_global("mixed_float16")
    base = keras.Sequential([keras.Input((8,)), layers.Dense(16)], name="base")
    set_global("float32")
    return compiled(keras.Sequential([keras.Input((8,)), base, layers.Dense(1)]))

def cloned():
    plain = net()
    set_global("mixed_float16")
    model = compiled(keras.models.clone_model(plain))
    set_global("float32")
    return model

def twice():
    model = net()
    stock = keras.optimizers.LossScaleOptimizer
    model.compile(stock(stock(keras.optimizers.SGD(1e-2))), "mse")
    return model

the_map = keras.dtype_policies.DTypePolicyMap(default_policy=keras.DTypePolicy("mixed_float16"))
rows = {
    "global": lambda: with_global("mixed_float16"),
    "per layer": lambda: compiled(net(dtype="mixed_float16")),
    "backbone": backbone,
    "map": lambda: with_global(the_map),
    "pure float16": lambda: with_global("float16"),
    "loaded under float32": lambda: loaded("mixed_float16", "float32", "a.keras"),
    "after build": after_build,
    "float32 loaded under float16": lambda: loaded("float32", "mixed_float16", "b.keras"),
    "cloned under float16": cloned,
    "twice": twice,
    "subclassed": lambda: with_global("mixed_float16", Subclassed),
}
found["rows"] = {}
for name, make in rows.items():
    model = make()
    if not model.built:
        model(ops.convert_to_tensor(X))
    before = chain(model.optimizer)
    computes = sorted({l.compute_dtype for l in model._flatten_layers() if l.weights and not l._layers})
    model.optimizer.iterations.assign(7)
    report = fw.keras.apply(model, "fp16-mixed")
    again = fw.keras.apply(model, "fp16-mixed").optimizer
    # Compiling takes long; the optimizers differ in these three alone.
    trains = name in ("global", "pure float16", "twice")
    history = fit(model, 2) if trains else {}
    model.optimizer.build(model.trainable_variables)
    found["rows"][name] = {
        "stock": before,
        "stock_computes": computes,
        "ours": chain(model.optimizer),
        "reported": [report.optimizer, again],
        "steps": int(model.optimizer.iterations) + model.optimizer.skipped_steps,
        "computes": {l.name: l.compute_dtype for l in model._flatten_layers() if l.weights and not l._layers},
        "variables": sorted({str(v._dtype) for v in model.variables}),
        "slots": sorted({str(v._dtype) for v in model.optimizer.variables if len(v.shape)}),
        "clipnorm": model.optimizer.inner_optimizer.clipnorm,
        "history": sorted(history),
        "finite": bool(np.isfinite(history.get("loss", 0)).all()),
    }

# Without float16 there is no loss scale, and the step count goes on.
model = with_global("mixed_float16")
model.optimizer.iterations.assign(7)
fw.keras.apply(model, "bf16-mixed")
fit(model, 1)
found["bf16"] = [chain(model.optimizer), int(model.optimizer.iterations), model.layers[0].compute_dtype]
fw.keras.apply(model, "fp32")
found["fp32"] = [chain(model.optimizer), {l.compute_dtype for l in model.layers} == {"float32"}]

# Before compile(): what compile() adds is ours.
model = net()
fw.keras.apply(model, "fp16-mixed")
model.compile("sgd", "mse")
found["later"] = chain(model.optimizer)

# Layers that stay in float32, first with Keras alone: non-finite or wrong.
big, small = np.full((4, 8), 1e5, "float32"), np.full((4, 8), 1e-4, "float32")
ids = np.full((4, 8), 4097.0, "float32")
cases = {
    "normalization": (lambda: layers.Normalization(mean=1e5, variance=1.0), big),
    "rescaling": (lambda: layers.Rescaling(1e-5), big),
    "unit": (lambda: layers.UnitNormalization(), small),
    "batch": (lambda: layers.BatchNormalization(), big),
    "rms": (lambda: layers.RMSNormalization(), big),
}
found["kept"] = {}
for name, (make, x) in cases.items():
    outcomes = []
    for plan in (None, "fp16-mixed"):
        set_global("float32" if plan else "mixed_float16")
        layer = make()
        model = keras.Sequential([keras.Input((8,)), layer, layers.Dense(4), layers.Dense(1)])
        set_global("float32")
        if plan:
            fw.keras.apply(model, plan)
        outcomes.append([layer.compute_dtype, finite(layer(ops.convert_to_tensor(x)))])
    found["kept"][name] = outcomes
set_global("mixed_float16")
nested = keras.Sequential([keras.Input((8,)), layers.Reshape((8,))], name="nested")
inputs = keras.Input((8,))
model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(4200, 2)(nested(inputs)))))
set_global("float32")
found["ids"] = [float(ops.convert_to_numpy(nested(ops.convert_to_tensor(ids)))[0, 0])]
fw.keras.apply(model, "fp16-mixed")
found["ids"].append(float(ops.convert_to_numpy(nested(ops.convert_to_tensor(ids)))[0, 0]))
model = Subclassed()
model(ops.convert_to_tensor(X))
fw.keras.apply(model, "fp16-mixed")
found["subclassed_inputs"] = finite(model(ops.convert_to_tensor(big)))

# A plan's globs, nested models, softmax, reductions, and what the tensors say.
inputs = keras.Input((4, 8))
attention = layers.MultiHeadAttention(2, 4, name="attention")
block = keras.Sequential([layers.Dense(8, name="one"), layers.Dense(8, name="two")], name="block")
h = block(attention(inputs, inputs))
gate = layers.Dense(8, activation="softmax", name="gate")(h)
h = layers.Add(name="add")([h, gate])
outputs = layers.Reshape((4,), name="out")(layers.Dense(1, name="head")(h))
model = compiled(keras.Model(inputs, outputs, name="net"))
plan = recipe(
    "fp16-mixed",
    modules=(
        ModulePolicy(module="block", policy=Policy(compute_dtype="float32")),
        ModulePolicy(module="block.two", policy=Policy(compute_dtype="float16")),
    ),
)
report = fw.keras.apply(model, plan)
found["globs"] = {row.path: row.policy for row in report.layers}
x3 = RNG.normal(size=(16, 4, 8)).astype("float32")
model.optimizer.build(model.trainable_variables)
weights = [np.array(w) for w in model.get_weights()]
class Tokens(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding, self.dtypes = layers.Embedding(5000, 4), []
    def call(self, ids):
        self.dtypes.append(str(keras.backend.standardize_dtype(ids.dtype)))
        return self.embedding(ids)

ids = np.full((2, 3), 4097, "float32")
tokens = Tokens()
reader = keras.Sequential([keras.Input((3,)), tokens, layers.Flatten(), layers.Dense(1)])
before = ops.convert_to_numpy(tokens(ids)).tolist()
found["token ids"] = {"remarks": list(fw.keras.apply(reader, "bf16-mixed").remarks)}
tokens.dtypes.clear()
after = tokens(ops.convert_to_tensor(ids))
found["token ids"] |= {"dtypes": tokens.dtypes, "out": str(keras.backend.standardize_dtype(after.dtype))}
found["token ids"]["near"] = bool(np.allclose(ops.convert_to_numpy(ops.cast(after, "float32")), before, rtol=1e-2))
seen = fw.keras.census(model, x3)
found["census"] = {row.path: [row.inputs, row.outputs, row.variables] for row in seen.layers}
found["gradients"] = sorted(set(seen.gradients.values()))
found["slots"] = seen.slots
found["unchanged"] = all((a == b).all() for a, b in zip(weights, model.get_weights()))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    fw.keras.apply(model, recipe("bf16-mixed", modules=(ModulePolicy(module="blok.one", policy=Policy()),)))
found["unmatched"] = [str(w.message) for w in told]

# Saving and loading under any global policy.
scale = LossScale(initial_scale=1024.0, growth_interval=3, growth="fixed")
model = compiled(net())
fw.keras.apply(model, recipe("fp16-mixed", loss_scale=scale))
fit(model, 4)
state = lambda m: [
    [l.compute_dtype for l in m.layers], chain(m.optimizer), float(m.optimizer.dynamic_scale),
    int(m.optimizer.iterations), m.optimizer.settings == scale,
    [float(np.sum(ops.convert_to_numpy(v))) for v in m.optimizer.variables if v.name != "scale_memory"],
    list(m.optimizer.read_memory())[:6], m.loss, m.optimizer.inner_optimizer.clipnorm,
]
model.save("c.keras")
found["saved"] = [state(model)]
for name in ("float32", "mixed_float16", "mixed_bfloat16"):
    set_global(name)
    found["saved"].append(state(fw.keras.load_model("c.keras")))
set_global("float32")
found["errors"] = {}
keras.config.set_floatx("float16")
for name, call in {
    "floatx": lambda: fw.keras.apply(net(), "fp16-mixed"),
    "no model": lambda: fw.keras.apply(layers.Dense(1), "fp16-mixed"),
}.items():
    try:
        call()
    except ValueError as error:
        found["errors"][name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip(request.param)
    folder: Path = tmp_path_factory.mktemp(request.param)
    return run_program(PROGRAM, folder, KERAS_BACKEND=request.param, FLOATWISE_LANG="en")


STOCK = ["keras.LossScaleOptimizer", "keras.Adam"]
OURS = ["floatwise.LossScaleOptimizer", "keras.Adam"]
ROWS = {  # by row: what compile() alone makes of it, and the formats its layers compute in
    "global": (STOCK, ["float16"]),
    "per layer": (["keras.Adam"], ["float16", "float32"]),
    "backbone": (["keras.Adam"], ["float16", "float32"]),
    "map": (["keras.Adam"], ["float16"]),
    "pure float16": (["keras.Adam"], ["float16"]),
    "loaded under float32": (["keras.Adam"], ["float16"]),
    "after build": (["keras.Adam"], ["float32"]),
    "float32 loaded under float16": (STOCK, ["float32"]),
    "cloned under float16": (STOCK, ["float32"]),
    "twice": (["keras.LossScaleOptimizer", "keras.LossScaleOptimizer", "keras.SGD"], ["float32"]),
    "subclassed": (STOCK, ["float16"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_loss_is_scaled_exactly_once_whatever_compile_did(found: Any, name: str) -> None:
    row = found["rows"][name]
    assert (row["stock"], row["stock_computes"]) == ROWS[name]
    assert row["ours"] == (["floatwise.LossScaleOptimizer", "keras.SGD"] if name == "twice" else OURS)
    assert row["reported"] == [f"LossScaleOptimizer({row['ours'][1].removeprefix('keras.')})"] * 2
    *inner, last = row["computes"].values()
    assert (set(inner), last) == ({"float16"}, "float32")
    assert row["variables"] == row["slots"] == ["float32"]
    trains = name in ("global", "pure float16", "twice")
    assert row["steps"] == 7 + 2 * trains
    assert row["finite"]
    assert row["clipnorm"] == (None if name == "twice" else 1.0)
    assert row["history"] == (["loss"] if name == "twice" else ["loss", "mae"] if trains else [])


def test_without_float16_there_is_no_loss_scale_and_the_optimizer_goes_on(found: Any) -> None:
    assert found["bf16"] == [["keras.Adam"], 8, "bfloat16"]
    assert found["fp32"] == [["keras.Adam"], True]


def test_compile_after_apply_ends_with_our_loss_scale(found: Any) -> None:
    assert found["later"] == ["floatwise.LossScaleOptimizer", "keras.SGD"]


@pytest.mark.parametrize("name", ["normalization", "rescaling", "unit", "batch", "rms"])
def test_layers_that_get_their_inputs_too_late_stay_in_float32(found: Any, name: str) -> None:
    assert found["kept"][name] == [["float16", False], ["float32", True]]


def test_inputs_reach_the_layer_that_needs_them_uncast(found: Any) -> None:
    assert found["ids"] == [4096.0, 4097.0]
    assert found["subclassed_inputs"]


def test_globs_speak_of_layers_and_what_is_inside_them(found: Any) -> None:
    assert found["globs"] == {
        "": "mixed_float16",
        "attention": "mixed_float16",
        "attention.query": "mixed_float16",
        "attention.key": "mixed_float16",
        "attention.value": "mixed_float16",
        "attention.softmax": "mixed_float16",
        "attention.attention_output": "mixed_float16",
        "block": "float32",
        "block.one": "float32",
        "block.two": "mixed_float16",
        "gate": "float32",
        "add": "mixed_float16",
        "head": "float32",
        "out": "float32",
    } | {path: "mixed_float16" for path in found["globs"] if path.startswith("attention.dropout")}


def test_ids_reach_an_embedding_inside_a_layer_unrounded(found: Any) -> None:
    ids = found["token ids"]
    assert (ids["dtypes"], ids["out"], ids["near"]) == (["float32"], "bfloat16", True)
    assert any("an Embedding is inside" in remark for remark in ids["remarks"])


def test_census_reads_formats_from_tensors(found: Any) -> None:
    layers = found["census"]
    assert layers["attention.query"] == [["float16"], ["float16"], ["float32"]]
    assert layers["block.one"] == [["float32"], ["float32"], ["float32"]]
    assert layers["block.two"] == [["float16"], ["float16"], ["float32"]]
    assert layers["add"] == [["float16"], ["float16"], []]
    assert layers["out"][1] == ["float32"]
    assert found["gradients"] == ["float32"]
    assert found["slots"] == ["float32"]
    assert found["unchanged"]


def test_a_glob_that_covers_nothing_is_told_with_the_nearest_path(found: Any) -> None:
    assert found["unmatched"] == [
        "the plan's module 'blok.one' covers no layer of this model; nearest: block.one, block.two, block"
    ]


def test_a_file_keeps_policies_scale_and_state_under_any_global_policy(found: Any) -> None:
    first, *loaded = found["saved"]
    assert first[:5] == [["float16", "float32"], OURS, 2048.0, 4, True]
    assert loaded == [first] * 3


def test_what_cannot_be_applied_is_refused(found: Any) -> None:
    assert "floatx() 'float16'" in found["errors"]["floatx"]
    assert "expected a keras.Model" in found["errors"]["no model"]

# SPDX-License-Identifier: Apache-2.0
"""`floatwise run` of unmodified Keras scripts on the three backends, under each kind of plan.

One child per backend runs all scripts of `tests/scripts/keras_run`, since starting a backend takes seconds; the tests
below read what it found in the scripts' variables and on stderr.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import run_program

pytest.importorskip("keras")
pytestmark = [pytest.mark.slow]

SCRIPTS = Path(__file__).parents[2] / "scripts" / "keras_run"

PROGRAM = """
import contextlib, io, json, os, sys, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")
import keras, numpy as np
import floatwise as fw
from floatwise.errors import FloatwiseError
from floatwise.keras.script.run import run_under_plan
from floatwise.plan import ModulePolicy, Policy, recipe
from floatwise.tap.execute import run_script

SCRIPTS, BACKEND = sys.argv[1], keras.backend.backend()
found = {}

def chain(optimizer):
    inner = getattr(optimizer, "inner_optimizer", None)
    return [type(optimizer).__module__.split(".")[0] + "." + type(optimizer).__name__] + (chain(inner) if inner else [])

def seen(code, told):
    main = sys.modules["__main__"]
    model = main.model
    result = {
        "code": code,
        "told": [line.replace(SCRIPTS + "/", "") for line in told.splitlines() if line.startswith("floatwise: ")],
        "computes": {path: l.compute_dtype for path, l in fw.keras.layer_paths(model).items() if path and l.weights},
        "variables": sorted({str(v._dtype) for v in model.variables if "float" in str(v._dtype)}),
    }
    for name in ("losses", "norms", "same", "evaluated", "steps_before"):
        if hasattr(main, name):
            result[name] = getattr(main, name)
    if hasattr(main, "history"):
        result["losses"] = main.history.get("loss") or main.history["error"]
        result["rates"] = [float(rate) for rate in main.history.get("learning_rate", [])]
    if getattr(model, "optimizer", None) is not None:
        result["optimizer"] = chain(model.optimizer)
        result["steps"] = getattr(main, "steps", int(keras.ops.convert_to_numpy(model.optimizer.iterations)))
    return result, main

def run(name, plan, *arguments):
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            code = run_under_plan(recipe(plan) if isinstance(plan, str) else plan, f"{SCRIPTS}/{name}.py", arguments)
    except FloatwiseError as error:
        return {"error": type(error).__name__, "message": str(error)}, None
    return seen(code, told.getvalue())

def alone(name, *arguments):
    main = run_script(f"{SCRIPTS}/{name}.py", arguments)
    return seen(0, "")[0]["losses"]

fw.keras.layer_paths = __import__("floatwise.keras.layer_paths", fromlist=["layer_paths"]).layer_paths
attributes = [(o, n, vars(o).get(n)) for o in (keras.Model, keras.optimizers.Optimizer.__mro__[1]) for n in
              ("__call__", "make_train_function", "apply", "stateless_call")]
for name in ("fit", "subclassed", "own_step", "loop"):
    found[f"{name} alone"] = alone(name)
    found[f"{name} fp32"] = run(name, "fp32")[0]
    for plan in ("bf16-mixed", "fp16-mixed"):
        found[f"{name} {plan}"], main = run(name, plan)
        if name == "fit" and plan == "bf16-mixed":
            census = fw.keras.census(main.model, main.x[:8])
            found["census"] = {row.path: [row.outputs, row.variables] for row in census.layers}
            found["gradients"] = sorted(set(census.gradients.values()))
        if name == "fit":
            os.rename("last.keras", f"{plan}.keras")
for plan in ("bf16-mixed", "fp16-mixed"):
    for arguments in (("compiled",), ("scaled",)) + ((("torch",),) if BACKEND == "torch" else ()):
        found[f"loop {plan} {arguments[0]}"] = run("loop", plan, *arguments)[0]
    found[f"own_policy {plan}"] = run("own_policy", plan)[0]
    found[f"two_models {plan}"] = run("two_models", plan)[0]
for plan in ("fp32", "bf16-mixed"):
    found[f"added_loss {plan}"] = run("added_loss", plan)[0]
found["overflow"] = run("loop", "bf16-mixed" if BACKEND == "jax" else "fp16-mixed", "compiled", "1e30")[0]
island = recipe("bf16-mixed", modules=(ModulePolicy(module="first", policy=Policy(compute_dtype="float32")),
                                       ModulePolicy(module="nowhere", policy=Policy(compute_dtype="float32"))))
found["island"] = run("own_policy", island)[0]
found["float8"] = run("fit", "fp8-tensorwise")[0]
if BACKEND == "tensorflow":
    for how in ("mirrored", "xla", "data"):
        found[f"ways {how} alone"] = alone("ways", how)
        for plan in ("bf16-mixed", "fp16-mixed"):
            found[f"ways {how} {plan}"] = run("ways", plan, how)[0]
found["leaves"] = run("leaves", "bf16-mixed")[0]
found["fails"] = run("fails", "bf16-mixed")[0]
os.environ["FLOATWISE_LANG"] = "zh"
found["zh"] = run("own_policy", island)[0]["told"]
found["undone"] = [vars(owner).get(name) is was for owner, name, was in attributes]
print(json.dumps(found, default=float))
"""


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip(request.param)
    folder: Path = tmp_path_factory.mktemp(request.param)
    found = run_program(PROGRAM, folder, str(SCRIPTS), KERAS_BACKEND=request.param, FLOATWISE_LANG="en")
    return {**found, "backend": request.param, "folder": folder}


OURS = "floatwise.LossScaleOptimizer"
EVERY = ("fit", "subclassed", "own_step", "loop")


def is_refused(ran: Any, name: str) -> bool:
    """A step of the script's own hands its state on by itself in JAX, and no loss scale is in it."""
    return ran["backend"] == "jax" and name in ("own_step fp16-mixed", "loop fp16-mixed", "loop fp16-mixed compiled")


@pytest.mark.parametrize("name", EVERY)
def test_under_float32_a_script_trains_as_it_does_alone_bit_for_bit(ran: Any, name: str) -> None:
    assert ran[f"{name} fp32"]["losses"] == ran[f"{name} alone"]
    assert set(ran[f"{name} fp32"]["computes"].values()) == {"float32"}


@pytest.mark.parametrize("name", EVERY)
def test_bfloat16_is_computed_in_and_the_loss_is_that_of_float32(ran: Any, name: str) -> None:
    row = ran[f"{name} bf16-mixed"]
    *inner, last = row["computes"].values()
    assert set(inner) - {"float32"} == {"bfloat16"}
    assert last == "float32"
    assert row["variables"] == ["float32"]
    # TensorFlow draws other dropout masks in bfloat16.
    assert row["losses"] == pytest.approx(ran[f"{name} alone"], rel=0.15, abs=0.5 if name == "subclassed" else 0.1)
    assert row["losses"] != ran[f"{name} alone"]
    assert row["told"][-1] == f"floatwise: bf16-mixed: {len_of(ran, name)} optimizer steps"
    assert OURS not in row.get("optimizer", [])


@pytest.mark.parametrize("name", EVERY)
def test_float16_scales_the_loss_once_and_skips_bad_steps(ran: Any, name: str) -> None:
    row = ran[f"{name} fp16-mixed"]
    if is_refused(ran, f"{name} fp16-mixed"):
        assert row["error"] == "ScriptError"
        assert "floatwise.keras.training_step" in row["message"]
        return
    told = row["told"][-1]
    skipped = int(told.partition(" skipped")[0].rpartition(" ")[2])
    assert told.endswith(f"{skipped} skipped, loss scale now {65536 >> skipped}")
    assert row["losses"][-1] < 0.75 * row["losses"][0]
    assert row["variables"] == ["float32"]
    if name in ("fit", "subclassed"):
        assert row["optimizer"].count(OURS) == 1
        assert row["steps"] + skipped == (9 if name == "fit" else 18)
    elif name == "own_step":  # trains by a step that does not scale: the gradients do
        assert row["optimizer"] == ["keras.SGD"]
        assert row["steps"] + skipped == 16


def len_of(ran: Any, name: str) -> int:
    return {"fit": 13, "subclassed": 18, "own_step": 16, "loop": 16}[name]


@pytest.mark.parametrize("plan", ["bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("how", ["compiled", "scaled", "torch"])
def test_loops_train_alike_however_they_are_written(ran: Any, plan: str, how: str) -> None:
    name = f"loop {plan} {how}"
    if how == "torch" and ran["backend"] != "torch":
        return
    if is_refused(ran, name):
        assert "floatwise.keras.training_step" in ran[name]["message"]
        return
    row = ran[name]
    if ran["backend"] == "jax" and how == "scaled":
        assert row["losses"][-1] < 0.1 * row["losses"][0]  # the scale is Keras' own, which skips by its own rules
        return
    assert row["losses"] == pytest.approx(ran[f"loop {plan}"]["losses"], rel=0.02)
    if plan == "fp16-mixed":
        replaced = [line for line in row["told"] if "LossScaleOptimizer is replaced" in line]
        assert len(replaced) == (how == "scaled")
        finite = [norm for norm in row["norms"] if norm == norm]
        assert max(finite) < 100  # the script sees unscaled gradients


def test_outputs_are_bfloat16_inside_and_variables_and_gradients_float32(ran: Any) -> None:
    outputs = {path: row[0] for path, row in ran["census"].items()}
    assert (outputs["conv"], outputs["norm"], outputs["hidden"]) == (["bfloat16"], ["bfloat16"], ["bfloat16"])
    assert outputs["head"] == ["float32"]
    assert ran["gradients"] == ["float32"]


@pytest.mark.parametrize("plan", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_callbacks_and_reloading_go_on_under_the_plan(ran: Any, plan: str) -> None:
    row = ran[f"fit {plan}"]
    assert row["rates"] == pytest.approx([0.01, 0.01, 0.005])
    assert row["same"]
    # The script has loaded a model with the count of its optimizer.
    assert row["steps_before"] == row["steps"]


@pytest.mark.parametrize("plan", ["bf16-mixed", "fp16-mixed"])
def test_the_script_s_own_precision_is_replaced_and_told(ran: Any, plan: str) -> None:
    row = ran[f"own_policy {plan}"]
    told = "\n".join(row["told"])
    assert "own_policy.py:8: the script's own set_dtype_policy('mixed_float16') is replaced by the plan" in told
    assert "second: the script's own dtype='mixed_bfloat16' is replaced by the plan" in told or plan == "bf16-mixed"
    assert "the script's own LossScaleOptimizer is replaced by the plan" in told
    low = "bfloat16" if plan == "bf16-mixed" else "float16"
    assert row["computes"] == {"first": low, "second": low, "head": "float32"}
    assert row["optimizer"] == (["keras.SGD"] if plan == "bf16-mixed" else [OURS, "keras.SGD"])


def test_two_models_train_in_turn(ran: Any) -> None:
    for plan in ("bf16-mixed", "fp16-mixed"):
        row = ran[f"two_models {plan}"]
        assert row["told"][-1].startswith(f"floatwise: {plan}: 6 optimizer steps")
        assert all(0 < loss < 2 for loss in row["losses"])


@pytest.mark.parametrize("how", ["mirrored", "xla", "data"])
def test_every_way_of_fit_on_tensorflow_trains_under_a_plan(ran: Any, how: str) -> None:
    if ran["backend"] != "tensorflow":
        return
    alone = ran[f"ways {how} alone"]
    assert ran[f"ways {how} bf16-mixed"]["losses"] == pytest.approx(alone, rel=0.02)
    scaled = ran[f"ways {how} fp16-mixed"]
    assert scaled["optimizer"] == [OURS, "keras.SGD"]
    skipped = int(scaled["told"][-1].partition(" skipped")[0].rpartition(" ")[2])
    assert scaled["steps"] + skipped == (24 if how == "data" else 12)
    # A call of several batches is one step; replicas step in threads of their own, and count once.
    assert scaled["told"][-1].startswith("floatwise: fp16-mixed: 12 optimizer steps, ")
    assert "not finite" not in scaled["told"][-1]
    assert list(scaled["computes"].values()) == ["float32", "float16", "float32"]  # the first normalizes the inputs


def test_losses_that_a_model_adds_are_float32(ran: Any) -> None:
    low, plain = (ran[f"added_loss {plan}"]["losses"] for plan in ("bf16-mixed", "fp32"))
    assert low == pytest.approx(plain, rel=0.02)


def test_islands_of_a_plan_stay_float32_and_globs_that_match_nothing_are_told(ran: Any) -> None:
    assert ran["island"]["computes"] == {"first": "float32", "second": "bfloat16", "head": "float32"}
    assert ran["island"]["told"][-1] == "floatwise: the plan's nowhere matched no layer"
    assert ran["zh"][-2:] == ["floatwise: bf16-mixed：16 个优化步", "floatwise: 计划中的 nowhere 没有匹配到任何层"]


def test_a_loss_that_is_not_finite_is_told_with_its_first_iteration(ran: Any) -> None:
    assert "; the loss was not finite at iteration 6" in ran["overflow"]["told"][-1]
    if ran["backend"] != "jax":
        assert ran["overflow"]["losses"][-1] < ran["overflow"]["losses"][0]  # its step was skipped


def test_what_fails_is_explained(ran: Any) -> None:
    assert ran["float8"]["error"] == "PlanError"
    assert "model.quantize" in ran["float8"]["message"]
    assert ran["fails"]["error"] == "ScriptError"
    assert "fails.py:5: the script failed with ZeroDivisionError" in ran["fails"]["message"]
    assert ran["leaves"]["code"] == 3
    assert ran["leaves"]["told"] == ["floatwise: bf16-mixed: the script took no optimizer step"]


def test_nothing_stays_replaced(ran: Any) -> None:
    assert ran["undone"] == [True] * len(ran["undone"])


PLAIN = """
import json, os, sys, warnings
import keras, numpy as np
sys.modules["floatwise"] = None
model = keras.models.load_model(sys.argv[1])
out = model.predict(np.zeros((2, 6, 6, 2), "float32"), verbose=0)
optimizer = model.optimizer
print(json.dumps([type(optimizer).__name__, type(optimizer).__module__.split(".")[0], int(optimizer.iterations),
                  float(getattr(optimizer, "dynamic_scale", 0)), str(out.dtype), model.layers[0].compute_dtype]))
"""


@pytest.mark.parametrize("plan", ["bf16-mixed", "fp16-mixed"])
def test_a_file_that_the_script_saved_loads_where_floatwise_is_not_installed(ran: Any, plan: str) -> None:
    command = [sys.executable, "-W", "error::UserWarning:keras", "-c", PLAIN, str(ran["folder"] / f"{plan}.keras")]
    environment = {"KERAS_BACKEND": ran["backend"], "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "/usr/bin"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    row = ran[f"fit {plan}"]
    name, scale, low = ("Adam", 0.0, "bfloat16") if plan == "bf16-mixed" else ("LossScaleOptimizer", None, "float16")
    loaded = json.loads(output.splitlines()[-1])
    assert [*loaded[:3], *loaded[4:]] == [name, "keras", row["steps"], "float32", low]
    assert loaded[3] == scale if scale is not None else loaded[3] in (65536.0, 32768.0, 16384.0)

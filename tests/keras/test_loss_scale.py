# SPDX-License-Identifier: Apache-2.0
"""The loss-scale optimizer, the monitor and the training step on the three backends, each beside Keras' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import run_program

pytest.importorskip("keras")
pytestmark = [pytest.mark.slow]

PROGRAM = """
import json, os, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import keras
from keras import layers, ops
import floatwise as fw
from floatwise.errors import BadInputError, NonFiniteGradientsError
from floatwise.plan import LossScale, recipe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)).astype("float32")
Y = X.sum(1, keepdims=True).astype("float32")
NAN = np.full_like(X, np.nan)
STOCK, OURS, SGD = keras.optimizers.LossScaleOptimizer, fw.keras.LossScaleOptimizer, keras.optimizers.SGD
BACKEND = keras.backend.backend()
found = {}

def net(optimizer=None, **fields):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(1)])
    model.compile(SGD(0.02) if optimizer is None else optimizer, "mse")
    scale = LossScale(**{"initial_scale": 1024.0, **fields})
    fw.keras.apply(model, recipe("fp16-mixed", loss_scale=scale))
    return model

def stock(optimizer):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(1, dtype="float32")])
    keras.config.set_dtype_policy("float32")
    model.compile(optimizer, "mse")
    return model

def fit(model, x, epochs, **options):
    return model.fit(x, Y, epochs=epochs, batch_size=16, verbose=0, shuffle=False, **options).history

def raised(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]

def weights(model):
    return float(np.sum([np.abs(w).sum() for w in model.get_weights()]))

# One within the other.
found["stock of stock"] = raised(lambda: STOCK(STOCK(SGD())))
found["ours of stock"] = raised(lambda: OURS(STOCK(SGD())))
found["stock of ours"] = raised(lambda: STOCK(OURS(SGD())))
found["clip on the wrapper"] = raised(lambda: OURS(SGD(), clipnorm=1.0))

# A loop that forgets scale_loss; gradients of ones for a weight of zeros.
def forgetful(optimizer):
    variable = keras.Variable(np.zeros(4, "float32"))
    optimizer.build([variable])
    ones = [ops.ones((4,))]
    if BACKEND == "jax" and type(optimizer) is STOCK:
        new, _ = optimizer.stateless_apply([v.value for v in optimizer.variables], ones, [variable.value])
        return float(new[0][0])
    optimizer.apply(ones, [variable])
    return float(ops.convert_to_numpy(variable)[0])

found["forgotten"] = [forgetful(STOCK(SGD(1.0))), raised(lambda: forgetful(OURS(SGD(1.0))))]
found["scaled by hand"] = forgetful(OURS(SGD(1.0), 32.0, checks_scaling=False))
half = ops.cast(1.0, "float16")
found["float16 loss"] = [float(OURS(SGD(), 2.0**17).scale_loss(half)), float(STOCK(SGD(), 2.0**17).scale_loss(half))]
found["jax in place"] = raised(
    lambda: STOCK(SGD()).apply([ops.ones((2,))], [keras.Variable(np.zeros(2, "float32"))])
)

# Overflow without end, then a good batch.
def collapsed(model, steps):
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    bad = [ops.full(v.shape, float("nan")) for v in model.trainable_variables]
    optimizer.scale_loss(1.0)
    if BACKEND == "jax":
        import jax
        step = jax.jit(optimizer.stateless_apply)
        own, mine = [v.value for v in optimizer.variables], [v.value for v in model.trainable_variables]
        for _ in range(steps):
            mine, own = step(own, bad, mine)
        for variable, value in zip(optimizer.variables, own):
            variable.assign(value)
    else:
        for _ in range(steps):
            optimizer.apply(bad, model.trainable_variables)
    scale = float(ops.convert_to_numpy(optimizer.dynamic_scale))
    fit(model, X, 1)
    return [scale, bool(np.isfinite(weights(model)))]

found["collapse"] = {"stock": collapsed(stock(SGD(0.02)), 170), "ours": collapsed(net(), 30)}

# fit and our step make the same weights; clipping sees unscaled gradients.
one, two = net(SGD(0.02, global_clipnorm=0.5)), net(SGD(0.02, global_clipnorm=0.5))
before = [np.array(w) for w in one.get_weights()]
found["fit"] = fit(one, X, 3)["loss"]
step = fw.keras.training_step(two, keras.losses.MeanSquaredError())
found["step"] = [float(step(ops.convert_to_tensor(X), ops.convert_to_tensor(Y))) for _ in range(3)]
found["moved"] = float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(before, two.get_weights()))))
found["same"] = max(float(np.abs(a - b).max()) for a, b in zip(one.get_weights(), two.get_weights()))
held = weights(two)
step(ops.convert_to_tensor(NAN), ops.convert_to_tensor(Y))
found["skipped"] = [two.optimizer.skipped_steps, float(two.optimizer.dynamic_scale), weights(two) == held]

# The monitor.
def watched(model, x, epochs, **options):
    monitor = fw.keras.Monitor(**options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        history = fit(model, x, epochs, callbacks=[monitor])
    texts = [str(w.message) for w in told if w.category is UserWarning]
    return [len(history["loss"]), monitor.skipped_steps, texts, {k: v[-1] for k, v in history.items() if k != "loss"}]

found["watched"] = watched(net(initial_scale=4.0), NAN, 8, stop_after=5)
found["watched stock"] = watched(stock(SGD(0.02)), NAN, 8, stop_after=5)
one = net()
found["raises"] = raised(lambda: fit(one, NAN, 4, callbacks=[fw.keras.Monitor(stop_after=2, raises=True)]))
one.optimizer = SGD(0.02)
one.train_function = None
found["unscaled"] = watched(one, X, 1)
os.environ["FLOATWISE_LANG"] = "zh"
found["chinese"] = watched(net(initial_scale=4.0), NAN, 3, stop_after=3)[2][-1]

# Moves, beside PyTorch's runtime.
if BACKEND == "torch":
    import torch
    from floatwise.keras.scale_moves import first_memory, moved
    from floatwise.torch import LossScaler
    plans = [
        LossScale(growth_interval=3),
        LossScale(growth_interval=2, hysteresis=2, floor=4.0, ceiling=2.0**18),
        LossScale(growth_interval=2, growth="fixed", ceiling=2.0**17, hysteresis=3),
        LossScale(growth_interval=3, initial_scale=2.0**10, headroom_bits=8, window_log2=(2, 12)),
        LossScale(growth_interval=1, growth_factor=4.0, backoff_factor=0.25, initial_scale=1000.0),
        LossScale(mode="static", initial_scale=128.0),
    ]
    found["moves"] = []
    for plan in plans:
        scaler = LossScaler.from_plan(plan, "cpu")
        scaler._alarm.after = None
        scaler.scale(torch.ones(()))
        scale, good, memory = torch.tensor(plan.initial_scale), torch.tensor(0), torch.tensor(first_memory(plan))
        wrong, seen = 0, set()
        for _ in range(300):
            finite, largest = bool(RNG.random() < 0.8), float(1.37 * 2.0 ** RNG.integers(-30, 5))
            state = torch.tensor(largest * scaler.get_scale() if finite else float("inf"))
            scaler.update_from(torch.tensor(float(not finite)), state)
            scale, good, memory = moved(plan, scale, good, memory, finite, torch.tensor(largest), torch.tensor(0.0))
            wrong += float(scale) != scaler.get_scale()
            seen.add(float(scale))
        found["moves"].append([wrong, len(seen) > 1 or plan.mode == "static"])
print(json.dumps(found))
"""

BACKENDS = ["tensorflow", "jax", "torch"]


@pytest.fixture(scope="module", params=BACKENDS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip(request.param)
    folder: Path = tmp_path_factory.mktemp(request.param)
    return {"backend": request.param} | run_program(PROGRAM, folder, KERAS_BACKEND=request.param, FLOATWISE_LANG="en")


def test_no_loss_scale_goes_around_another(found: Any) -> None:
    assert found["stock of stock"] is None
    for name, inner in (("ours of stock", "LossScaleOptimizer"), ("stock of ours", "LossScaleOptimizer")):
        kind, text = found[name]
        assert kind == "BadInputError"
        assert text.startswith(f"got a {inner} to wrap, which divides gradients by a loss scale already")
    assert found["clip on the wrapper"][0] == "ValueError"


def test_a_loop_that_forgets_to_scale_gets_an_error(found: Any) -> None:
    moved, (kind, text) = found["forgotten"]
    assert moved == -(2.0**-15)
    assert kind == "BadInputError"
    assert "would be divided by 65536, and SGD would stand still" in text
    assert found["scaled by hand"] == -(2.0**-5)


def test_a_float16_loss_is_scaled_in_float32(found: Any) -> None:
    ours, stock = found["float16 loss"]
    assert ours == 2.0**17
    assert stock == (2.0**17 if found["backend"] == "torch" else float("inf"))


def test_apply_works_outside_of_jit_on_jax(found: Any) -> None:
    # `forgotten` and `scaled by hand` have called ours in place, on every backend.
    assert (found["jax in place"] is None) == (found["backend"] != "jax")


def test_overflow_without_end_stops_at_the_floor(found: Any) -> None:
    assert found["collapse"] == {"stock": [0.0, False], "ours": [1.0, True]}


def test_the_training_step_does_what_fit_does(found: Any) -> None:
    assert found["step"] == pytest.approx(found["fit"], rel=1e-5)
    assert found["same"] < 1e-6
    # Three steps of at most learning rate times the largest norm: clipping saw unscaled gradients.
    assert 0.02 < found["moved"] <= 3 * 0.02 * 0.5 * 1.001
    assert found["skipped"] == [1, 512.0, True]


@pytest.mark.parametrize("whose", ["watched", "watched stock"])
def test_the_monitor_stops_before_the_scale_is_lost(found: Any, whose: str) -> None:
    epochs, skipped, texts, logs = found[whose]
    assert (epochs, skipped, logs["skipped_steps"]) == (5, 5, 5)
    assert logs["loss_scale"] == (1.0 if whose == "watched" else 1024.0)
    assert texts[-1].startswith("training was stopped: 5 steps in a row were skipped")
    assert "The loss is not finite either" in texts[-1]
    assert len(texts) == (2 if whose == "watched" else 1)
    assert found["raises"][0] == "NonFiniteGradientsError"


def test_the_monitor_speaks_of_a_missing_loss_scale_and_chinese(found: Any) -> None:
    assert "1 layers compute in float16, such as 'dense" in found["unscaled"][2][0]
    assert found["chinese"].startswith("训练已停止：连续 3 步")


def test_the_scale_moves_as_in_the_torch_runtime(found: Any) -> None:
    if found["backend"] == "torch":
        assert found["moves"] == [[0, True]] * 6

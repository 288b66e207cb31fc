# SPDX-License-Identifier: Apache-2.0
"""Trains in every way that there is and prints as JSON, for each, the losses that were heard and those that it had."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Hashable
from typing import Any

from floatwise.keras.script.iterations import Iterations
from floatwise.tap.patches import Patches

warnings.simplefilter("ignore")
patches, heard = Patches(), list[float]()
keys = set[Hashable]()


def on_step(key: Hashable, loss: float) -> None:
    keys.add(key)
    heard.append(loss)


iterations = Iterations(patches, on_step)

import keras  # noqa: E402
import numpy as np  # noqa: E402

backend = keras.backend.backend()
x = np.random.default_rng(0).random((32, 4), dtype="float32")
y = x.sum(1, keepdims=True)
loss_fn = keras.losses.MeanSquaredError()
found: dict[str, Any] = {}


def model_and_optimizer(scales: bool) -> tuple[Any, Any]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05)
    wrapped = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0) if scales else optimizer
    wrapped.build(model.trainable_variables)
    return model, wrapped


def note(name: str, losses: list[float]) -> None:
    found[name] = {"heard": list(heard), "had": losses}
    heard.clear()


def fit(name: str, **options: Any) -> None:
    """The means that callbacks get must be those of the losses that were heard."""
    model, optimizer = model_and_optimizer(scales=name == "scaled")
    model.compile(optimizer, loss_fn, **options)
    means: list[float] = []
    end = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: means.append(float(logs["loss"])))
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0, callbacks=[end])
    note(f"fit {name}", [m * (i + 1) - (means[i - 1] * i if i else 0.0) for i, m in enumerate(means)])


def tensorflow_loops(scales: bool) -> None:
    import tensorflow as tf

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
            scaled = optimizer.scale_loss(loss)
        weights = model.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        return loss

    wraps: dict[str, Callable[[Any], Any]] = {
        "eager": lambda function: function,
        "graph": tf.function,
        "xla": functools.partial(tf.function, jit_compile=True),
    }
    for name, wrap in wraps.items():
        model, optimizer = model_and_optimizer(scales)
        run = wrap(functools.partial(step, model, optimizer))
        note(f"{name} {scales}", [float(run(x, y)) for _ in range(3)])
    model, optimizer = model_and_optimizer(scales)

    @tf.function  # type: ignore[untyped-decorator]
    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
            scaled = optimizer.scale_loss(loss)
        return loss, tape.gradient(scaled, model.trainable_weights)

    losses = []
    for _ in range(3):
        loss, grads = gradients(x, y)
        optimizer.apply(grads, model.trainable_weights)
        losses.append(float(loss))
    note(f"apart {scales}", losses)
    model, optimizer = model_and_optimizer(scales)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    had = [float(step(model, optimizer, a, b)) for a, b in batches]
    heard.clear()
    model, optimizer = model_and_optimizer(scales)

    @tf.function  # type: ignore[untyped-decorator]
    def epoch() -> None:
        for a, b in batches:
            step(model, optimizer, a, b)

    epoch()
    note(f"whole epoch {scales}", had)


def torch_loops(scales: bool) -> None:
    import torch

    model, optimizer = model_and_optimizer(scales)
    losses = []
    for _ in range(3):
        model.zero_grad()
        loss = loss_fn(torch.tensor(y), model(x, training=True))
        optimizer.scale_loss(loss).backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_weights], model.trainable_weights)
        losses.append(loss.item())
    note(f"loop {scales}", losses)
    own = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = loss_fn(torch.tensor(y), model(x, training=True))
    (loss / 2).backward(retain_graph=True)
    (loss / 2).backward()
    own.step()
    note(f"two backward passes {scales}", [loss.item()])


def jax_loops(scales: bool) -> None:
    import jax

    def step_of(model: Any, optimizer: Any, wrap: Any) -> Callable[..., Any]:
        def loss_of(weights: Any, own: Any, x: Any, y: Any) -> Any:
            outputs, _ = model.stateless_call(weights, [], x, training=True)
            loss = loss_fn(y, outputs)
            with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, own, strict=True))):
                return optimizer.scale_loss(loss), loss

        gradient = wrap(jax.value_and_grad(loss_of, has_aux=True))

        def step(weights: Any, own: Any, x: Any, y: Any) -> Any:
            (_, loss), grads = gradient(weights, own, x, y)
            return loss, *optimizer.stateless_apply(own, grads, weights)

        return step

    for name, whole, inner in (("eager", None, None), ("jitted", jax.jit, None), ("apart", None, jax.jit)):
        model, optimizer = model_and_optimizer(scales)
        step = step_of(model, optimizer, inner or (lambda function: function))
        step = whole(step) if whole else step
        state = [v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]
        losses = []
        for _ in range(3):
            loss, *state = step(*state, x, y)
            losses.append(float(loss))
        jax.effects_barrier()  # type: ignore[no-untyped-call]
        note(f"{name} {scales}", losses)


for name, options in {"plain": {}, "eager": {"run_eagerly": True}, "uncompiled": {"jit_compile": False}}.items():
    fit(name, **options)
fit("scaled")
for scales in (False, True):
    {"tensorflow": tensorflow_loops, "torch": torch_loops, "jax": jax_loops}[backend](scales)
if backend != "torch":
    model, optimizer = model_and_optimizer(scales=False)
    model.compile(optimizer, loss_fn, steps_per_execution=2)
    model.fit(x, y, batch_size=8, verbose=0)
    found["steps per execution"] = len(heard)
found["optimizers"] = sorted(iterations.optimizers)
found["kinds"] = sorted({str(key[0]) for key in keys if isinstance(key, tuple)})
patches.undo()
heard.clear()
model, optimizer = model_and_optimizer(scales=False)
model.compile(optimizer, loss_fn)
model.train_on_batch(x, y)
found["after undo"] = len(heard)
print(json.dumps(found))

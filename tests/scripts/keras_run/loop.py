# SPDX-License-Identifier: Apache-2.0
"""A loop of the script's own: eager, compiled ("compiled"), or with Keras' loss-scale optimizer ("scaled")."""

import sys

import keras
import numpy as np
from keras import layers, ops

how = sys.argv[1] if len(sys.argv) > 1 else "eager"
factor = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = x.sum(1, keepdims=True)
inputs = keras.Input((8,))
outputs = layers.Dense(1, name="head")(layers.Dense(16, activation="relu", name="hidden")(inputs))
model = keras.Model(inputs, outputs)
optimizer = keras.optimizers.SGD(1e-2, momentum=0.9)
if how == "scaled":
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
optimizer.build(model.trainable_variables)
backend = keras.backend.backend()
losses, norms = [], []


def loss_of(target, out):
    return ops.mean(ops.square(out - target))


if backend == "tensorflow":
    import tensorflow as tf

    def step(xs, ys):
        with tf.GradientTape() as tape:
            loss = loss_of(ys, model(xs, training=True))
            scaled = optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss, tf.linalg.global_norm(grads)

    if how == "compiled":
        step = tf.function(step)
elif backend == "torch":
    import torch

    other = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9) if how == "torch" else None

    def step(xs, ys):
        model.zero_grad()
        loss = loss_of(ops.convert_to_tensor(ys), model(xs, training=True))
        optimizer.scale_loss(loss).backward()
        grads = [v.value.grad for v in model.trainable_variables]
        norm = torch.nn.utils.get_total_norm(grads)
        if other is not None:
            other.step()
        else:
            with torch.no_grad():
                optimizer.apply(grads, model.trainable_variables)
        return loss.detach(), norm
else:
    import jax

    def pure(weights, others, state, xs, ys):
        def inner(weights, others):
            out, others = model.stateless_call(weights, others, xs, training=True)
            loss = loss_of(ys, out)
            with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, state, strict=True))):
                return optimizer.scale_loss(loss), (loss, others)

        (_, (loss, others)), grads = jax.value_and_grad(inner, has_aux=True)(weights, others)
        weights, state = optimizer.stateless_apply(state, grads, weights)
        return (weights, others, state), loss, ops.sqrt(sum(ops.sum(ops.square(g)) for g in grads))

    if how == "compiled":
        pure = jax.jit(pure)
    state = tuple([v.value for v in of] for of in (model.trainable_variables, [], optimizer.variables))

    def step(xs, ys):
        global state
        state, loss, norm = pure(*state, xs, ys)
        return loss, norm


for epoch in range(4):
    for start in range(0, 64, 16):
        bad = factor if (epoch, start) == (1, 16) else 1.0
        loss, norm = step(x[start : start + 16] * np.float32(bad), y[start : start + 16])
        losses.append(float(loss))
        norms.append(float(norm))
if backend == "jax":
    for variable, value in zip(model.trainable_variables, state[0], strict=True):
        variable.assign(value)

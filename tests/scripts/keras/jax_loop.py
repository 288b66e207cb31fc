# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own in JAX: a jitted stateless step, then gradients jitted apart from the update."""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

keras.utils.set_random_seed(7)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
loss_fn = keras.losses.MeanSquaredError()
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)


def loss_of(trainable, others, x, y):
    y_pred, others = model.stateless_call(trainable, others, x, training=True)
    return loss_fn(y, y_pred), others


gradient = jax.value_and_grad(loss_of, has_aux=True)


@jax.jit
def step(state, x, y):
    trainable, others, own = state
    (loss, others), gradients = gradient(trainable, others, x, y)
    trainable, own = optimizer.stateless_apply(own, gradients, trainable)
    return loss, (trainable, others, own)


x = np.random.default_rng(7).random((32, 8), dtype="float32")
y = x.sum(1, keepdims=True)
variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
state = tuple([v.value for v in kind] for kind in variables)
losses = []
for _ in range(4):
    loss, state = step(state, x, y)
    losses.append(float(loss))
jitted = jax.jit(gradient)
trainable, others, own = state
for _ in range(3):
    (loss, others), gradients = jitted(trainable, others, x, y)
    trainable, own = optimizer.stateless_apply(own, gradients, trainable)
    losses.append(float(loss))
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(losses, file)

# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own in TensorFlow: a compiled step with a tape, and some eager steps."""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.build((None, 8))
optimizer = keras.optimizers.SGD(0.05)
loss_fn = keras.losses.MeanSquaredError()


def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights))
    return loss


x = np.random.default_rng(5).random((64, 8), dtype="float32")
y = x.sum(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
losses = []
for run in (tf.function(step, jit_compile=True), tf.function(step), step):
    for batch in data:
        losses.append(float(run(*batch)))
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(losses, file)

# SPDX-License-Identifier: Apache-2.0
"""Ways of `fit` that TensorFlow has: a replicated model, XLA, several steps at once; of a tf.data set."""

import contextlib
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

how = sys.argv[1]
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = x.sum(1, keepdims=True)
scope = tf.distribute.MirroredStrategy(["CPU:0"]).scope() if how == "mirrored" else contextlib.nullcontext()
with scope:
    model = keras.Sequential([layers.Normalization(), layers.Dense(8, activation="relu"), layers.Dense(1)])
    model.layers[0].adapt(x)
    model.compile(
        keras.optimizers.SGD(1e-2),
        "mse",
        jit_compile=how == "xla",
        steps_per_execution=2 if how == "data" else 1,
    )
batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=0).batch(8 if how == "data" else 16)
history = model.fit(batches, epochs=3, verbose=0, validation_data=batches).history

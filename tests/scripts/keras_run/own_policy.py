# SPDX-License-Identifier: Apache-2.0
"""A script with a mixed policy of its own, a layer of another, and Keras' loss-scale optimizer."""

import keras
import numpy as np
from keras import layers

keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = x.sum(1, keepdims=True)

model = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(16, activation="relu", name="first"),
        layers.Dense(16, activation="relu", name="second", dtype="mixed_bfloat16"),
        layers.Dense(1, name="head", dtype="float32"),
    ]
)
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2)), "mse")
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0).history

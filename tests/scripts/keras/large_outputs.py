# SPDX-License-Identifier: Apache-2.0
"""A layer whose outputs float16 cannot hold, between two that it can."""

import keras
import numpy as np

keras.utils.set_random_seed(16)
model = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(32, name="first"),
        keras.layers.Dense(32, name="large", kernel_initializer=keras.initializers.RandomNormal(stddev=1e5)),
        keras.layers.LayerNormalization(name="norm"),
        keras.layers.Dense(32, name="last"),
        keras.layers.Dense(32, name="out"),
    ]
)
model.compile("sgd", "mse")
x = np.random.default_rng(16).random((64, 32), dtype="float32")
model.fit(x, x, batch_size=32, epochs=3, verbose=0)

# SPDX-License-Identifier: Apache-2.0
"""A functional model with batch normalisation, a residual sum and two outputs."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x = rng.random((48, 12), dtype="float32")

inputs = keras.Input((12,))
h = keras.layers.Dense(16, name="first")(inputs)
h = keras.layers.BatchNormalization(name="norm")(h)
h = keras.layers.ReLU()(h)
h = keras.layers.Add(name="sum")([keras.layers.Dense(16, name="left")(h), keras.layers.Dense(16, name="right")(h)])
model = keras.Model(inputs, [keras.layers.Dense(1, name="value")(h), keras.layers.Dense(3, name="kind")(h)])
model.compile("sgd", ["mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True)])
model.fit(x, [x.sum(1), rng.integers(0, 3, 48)], batch_size=16, epochs=3, verbose=0)

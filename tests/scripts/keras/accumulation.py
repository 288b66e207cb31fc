# SPDX-License-Identifier: Apache-2.0
"""Gradients accumulated over two batches and clipped."""

import keras
import numpy as np

keras.utils.set_random_seed(10)
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5, gradient_accumulation_steps=2), "mse")
x = np.random.default_rng(10).random((48, 8), dtype="float32")
model.fit(x, x.sum(1), batch_size=8, verbose=0)

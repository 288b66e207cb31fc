# SPDX-License-Identifier: Apache-2.0
"""Mixed float16 for the whole process: `compile` wraps the optimizer."""

import keras
import numpy as np

keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(12)
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, "relu", name="body"), keras.layers.Dense(1, dtype="float32", name="out")]
)
model.compile("adam", "mse")
x = np.random.default_rng(12).random((32, 8), dtype="float32")
model.fit(x, x.sum(1), batch_size=8, verbose=0)

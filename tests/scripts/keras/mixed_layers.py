# SPDX-License-Identifier: Apache-2.0
"""Policies of layers, a map of policies, bfloat16 weights and an optimizer that scales, each by hand."""

import keras
import numpy as np

keras.utils.set_random_seed(13)
policies = keras.dtype_policies.DTypePolicyMap()
policies["second"] = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(16, dtype="mixed_float16", name="first"),
        keras.layers.Dense(16, dtype=policies, name="second"),
        keras.layers.Dense(16, dtype="bfloat16", name="third"),
        keras.layers.Dense(1, dtype="float32", name="out"),
    ]
)
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)), "mse")
x = np.random.default_rng(13).random((32, 8), dtype="float32")
model.fit(x, x.sum(1), batch_size=8, verbose=0)

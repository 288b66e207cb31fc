# SPDX-License-Identifier: Apache-2.0
"""A subclassed model that adds a loss of its own in the format it computes in; on JAX a gradient taken by position."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = layers.Dense(16, kernel_regularizer="l2"), layers.Dense(1)

    def call(self, inputs):
        hidden = self.hidden(inputs)
        self.add_loss(1e-4 * ops.sum(hidden**2))
        return self.head(hidden)


model = Net()
model.compile("sgd", "mse")
history = model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=2, verbose=0).history
if keras.backend.backend() == "jax":
    import jax

    assert float(jax.grad(lambda value: value * value, 0, False, False, True)(3.0)) == 6.0

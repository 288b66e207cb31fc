# SPDX-License-Identifier: Apache-2.0
"""A subclassed model with layers in lists, in another layer, and one that is used twice; its own losses too."""

import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(2)


class Block(keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.up = keras.layers.Dense(2 * units, activation="gelu", name="up", kernel_regularizer="l2")
        self.down = keras.layers.Dense(units, name="down")

    def call(self, x):
        return x + self.down(self.up(x))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(16, name=f"block_{i}") for i in range(2)]
        self.shared = keras.layers.Dense(16, name="shared")
        self.scale = self.add_weight(shape=(16, 16), initializer="glorot_uniform", name="scale")

    def call(self, x, training=False):
        x = self.shared(self.shared(x))
        for block in self.blocks:
            x = block(x)
        return ops.matmul(x, self.scale)


model = Net()
model.compile(keras.optimizers.RMSprop(1e-3), "mae")
x = np.random.default_rng(2).random((40, 16), dtype="float32")
model.fit(x, x[:, ::-1], batch_size=8, epochs=1, verbose=0)

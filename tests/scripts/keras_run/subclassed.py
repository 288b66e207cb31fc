# SPDX-License-Identifier: Apache-2.0
"""A subclassed model, built by its first batch, whose call has a branch of Python's."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = x.sum(1, keepdims=True)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(16, activation="relu")
        self.drop = layers.Dropout(0.1)
        self.head = layers.Dense(1)

    def call(self, inputs, training=None):
        hidden = self.hidden(inputs)
        if training:
            hidden = self.drop(hidden, training=training)
        return self.head(hidden)


model = Net()
model.compile(keras.optimizers.SGD(1e-2, momentum=0.9), "mse")
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0).history
losses = history["loss"]
for start in range(0, 64, 32):
    losses.append(float(model.train_on_batch(x[start : start + 32], y[start : start + 32])))

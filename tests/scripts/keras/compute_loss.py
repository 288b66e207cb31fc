# SPDX-License-Identifier: Apache-2.0
"""An overridden `compute_loss`."""

import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(4)


class Custom(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred - y)) + sum(self.losses)


inputs = keras.Input((8,))
model = Custom(inputs, keras.layers.Dense(8, name="out", activity_regularizer="l2")(inputs))
model.compile("sgd")
x = np.random.default_rng(4).random((32, 8), dtype="float32")
model.fit(x, x, batch_size=8, epochs=1, verbose=0)

# SPDX-License-Identifier: Apache-2.0
"""Data as a `tf.data` pipeline, a generator and a `PyDataset`, the last batch smaller."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(15)
x = np.random.default_rng(15).random((20, 8), dtype="float32")
y = x.sum(1, keepdims=True)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]


def generate():
    while True:
        yield x[:8], y[:8]


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), verbose=0)
model.fit(generate(), steps_per_epoch=2, verbose=0)
model.fit(Batches(), verbose=0)

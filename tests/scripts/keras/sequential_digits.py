# SPDX-License-Identifier: Apache-2.0
"""A Sequential convolutional net on images of digits, by `fit`; writes its losses where asked."""

import json
import sys

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).random((64, 8, 8, 1), dtype="float32")
y = (x.mean((1, 2, 3)) * 100).astype("int32") % 10

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="conv"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu", name="hidden"),
        keras.layers.Dense(10, name="logits"),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, y, batch_size=64, epochs=6, verbose=0)
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(history.history["loss"], file)

# SPDX-License-Identifier: Apache-2.0
"""A small transformer over tokens, with a mask: embedding, attention, layer normalisation, dropout."""

import json
import sys

import keras
import numpy as np

keras.utils.set_random_seed(8)
tokens = keras.Input((12,), dtype="int32")
h = keras.layers.Embedding(50, 16, mask_zero=True, name="tokens")(tokens)
a = keras.layers.MultiHeadAttention(2, 8, name="attention")(h, h)
h = keras.layers.LayerNormalization(name="norm")(keras.layers.Add(name="sum")([h, keras.layers.Dropout(0.1)(a)]))
h = keras.layers.GlobalAveragePooling1D(name="pool")(h)
model = keras.Model(tokens, keras.layers.Dense(4, activation="softmax", name="head")(h))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
rng = np.random.default_rng(8)
history = model.fit(rng.integers(0, 50, (40, 12)), rng.integers(0, 4, 40), batch_size=40, epochs=4, verbose=0)
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(history.history["loss"], file)

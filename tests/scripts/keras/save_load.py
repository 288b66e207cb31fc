# SPDX-License-Identifier: Apache-2.0
"""Trains, saves, loads and trains on; stops early by a callback; watches a validation set; weighs classes."""

import os
import tempfile

import keras
import numpy as np

keras.utils.set_random_seed(14)
rng = np.random.default_rng(14)
x, y = rng.random((48, 8), dtype="float32"), rng.integers(0, 2, 48)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping("val_loss", patience=0, baseline=0.0)
model.fit(x, y, 16, 5, verbose=0, validation_data=(x, y), callbacks=[stop], class_weight={0: 1.0, 1: 2.0})
with tempfile.TemporaryDirectory() as folder:
    model.save(os.path.join(folder, "model.keras"))
    model = keras.models.load_model(os.path.join(folder, "model.keras"))
model.fit(x, y, batch_size=16, epochs=1, verbose=0, validation_split=0.25)
model.predict(x, verbose=0)

# SPDX-License-Identifier: Apache-2.0
"""A convolutional net that is fitted with callbacks, saved, loaded and fitted on; it knows nothing of precision."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 6, 6, 2)).astype("float32")
y = x.mean((1, 2, 3), keepdims=False)[:, None] * 4

model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        layers.Conv2D(8, 3, padding="same", name="conv"),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(8, activation="relu", name="hidden"),
        layers.Dense(1, name="head"),
    ]
)
optimizer = keras.optimizers.Adam(1e-2, clipnorm=1.0)
model.compile(optimizer, "mse", metrics=["mae"])
model.evaluate(x, y, verbose=0)
reduce = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e9, cooldown=0)
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=3,
    validation_split=0.25,
    verbose=0,
    callbacks=[
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        reduce,
    ],
).history
predicted = model.predict(x, verbose=0)
evaluated = model.evaluate(x, y, verbose=0)
steps = int(model.optimizer.iterations)
model.save("last.keras")
model.load_weights("best.weights.h5")
loaded = keras.models.load_model("last.keras")
same = bool(np.allclose(loaded.predict(x, verbose=0), predicted, atol=1e-6))
steps_before = int(loaded.optimizer.iterations)
loaded.fit(x, y, batch_size=16, epochs=1, verbose=0)

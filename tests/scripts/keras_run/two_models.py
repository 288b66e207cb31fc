# SPDX-License-Identifier: Apache-2.0
"""Two models trained in turn, one through the other, each compiled."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
real = rng.normal(3.0, 1.0, size=(32, 4)).astype("float32")
maker = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu", name="m1"), layers.Dense(4)])
judge = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu", name="j1"), layers.Dense(1)])
loss = keras.losses.BinaryCrossentropy(from_logits=True)
judge.compile(keras.optimizers.Adam(1e-2), loss)
both = keras.Sequential([keras.Input((4,)), maker, judge])
judge.trainable = False
both.compile(keras.optimizers.Adam(1e-2), loss)
losses = []
for _ in range(3):
    made = maker.predict(rng.normal(size=(32, 4)).astype("float32"), verbose=0)
    judge.train_on_batch(np.concatenate([real, made]), np.repeat([1.0, 0.0], 32)[:, None])
    losses.append(float(both.train_on_batch(rng.normal(size=(32, 4)).astype("float32"), np.ones((32, 1)))))
model = judge

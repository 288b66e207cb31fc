# SPDX-License-Identifier: Apache-2.0
"""Two models that train against each other by `train_on_batch`, the one inside a third."""

import keras
import numpy as np

keras.utils.set_random_seed(11)
rng = np.random.default_rng(11)
critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)], name="critic")
maker = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)], name="maker")
loss = keras.losses.BinaryCrossentropy(from_logits=True)
critic.compile("adam", loss)
critic_frozen = keras.models.clone_model(critic)
critic_frozen.trainable = False
both = keras.Sequential([keras.Input((2,)), maker, critic_frozen], name="both")
both.compile("adam", loss)
for _ in range(4):
    real = rng.random((8, 4), dtype="float32")
    made = keras.ops.convert_to_numpy(maker(rng.random((8, 2), dtype="float32")))
    critic.train_on_batch(np.concatenate([real, made]), np.array([1.0] * 8 + [0.0] * 8)[:, None])
    critic_frozen.set_weights(critic.get_weights())
    both.train_on_batch(rng.random((8, 2), dtype="float32"), np.ones((8, 1)))

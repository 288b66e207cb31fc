# SPDX-License-Identifier: Apache-2.0
"""A model with a train step of its own that does not scale its loss, and clips its gradients."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = x.sum(1, keepdims=True)
backend = keras.backend.backend()


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])

    def call(self, inputs, training=None):
        return self.net(inputs)

    if backend == "jax":

        def train_step(self, state, data):
            import jax

            weights, others, kept, metrics = state
            x, y = data

            def loss_of(weights, others):
                out, others = self.stateless_call(weights, others, x, training=True)
                return ops.mean(ops.square(out - y)), others

            (loss, others), grads = jax.value_and_grad(loss_of, has_aux=True)(weights, others)
            weights, kept = self.optimizer.stateless_apply(kept, grads, weights)
            return {"error": loss}, (weights, others, kept, metrics)

    elif backend == "torch":

        def train_step(self, data):
            x, y = data
            self.zero_grad()
            loss = ops.mean(ops.square(self(x, training=True) - y))
            loss.backward()
            variables = self.trainable_weights
            self.optimizer.apply([v.value.grad for v in variables], variables)
            return {"error": loss}

    else:

        def train_step(self, data):
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                loss = ops.mean(ops.square(self(x, training=True) - y))
            grads = tape.gradient(loss, self.trainable_variables)
            grads, _ = tf.clip_by_global_norm(grads, 1.0)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            return {"error": loss}


model = Net()
model.compile(keras.optimizers.SGD(1e-2, momentum=0.9))
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0).history

# SPDX-License-Identifier: Apache-2.0
"""An overridden `train_step`, as Keras' guides write it for each backend."""

import keras
import numpy as np

keras.utils.set_random_seed(3)


class Custom(keras.Model):
    def train_step(self, *args):
        if keras.backend.backend() == "jax":
            return self._jax_step(*args)
        x, y = args[0]
        if keras.backend.backend() == "torch":
            import torch

            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
        else:
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"own": loss}

    def _jax_step(self, state, data):
        import jax

        trainable, others, optimizer, metrics = state
        x, y = data

        def loss_of(trainable, others):
            y_pred, others = self.stateless_call(trainable, others, x, training=True)
            return self.compute_loss(x, y, y_pred), others

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, others)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"own": loss}, (trainable, others, optimizer, metrics)


inputs = keras.Input((8,))
model = Custom(inputs, keras.layers.Dense(1, name="out")(keras.layers.Dense(16, "tanh", name="body")(inputs)))
model.compile(keras.optimizers.Adam(1e-2), "mse")
x = np.random.default_rng(3).random((32, 8), dtype="float32")
model.fit(x, x.mean(1, keepdims=True), batch_size=8, epochs=1, verbose=0)

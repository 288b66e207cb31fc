# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own in PyTorch: with Keras' optimizer, then with PyTorch's; evaluated in between."""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

keras.utils.set_random_seed(6)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
loss_fn = keras.losses.MeanSquaredError()
optimizer = keras.optimizers.AdamW(0.01)
x = torch.rand(32, 8)
y = x.sum(1, keepdim=True)
losses = []
for _ in range(3):
    loss = loss_fn(y, model(x, training=True))
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        optimizer.apply([v.value.grad for v in model.trainable_weights], model.trainable_weights)
        model(x)
    losses.append(loss.item())
other = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    other.zero_grad()
    loss = loss_fn(y, model(x, training=True))
    loss.backward()
    other.step()
    losses.append(loss.item())
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump(losses, file)

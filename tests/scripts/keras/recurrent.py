# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: an LSTM, a bidirectional GRU, a cell, and a layer at each time step."""

import keras
import numpy as np

keras.utils.set_random_seed(9)
inputs = keras.Input((6, 5))
h = keras.layers.LSTM(8, return_sequences=True, name="lstm")(inputs)
h = keras.layers.Bidirectional(keras.layers.GRU(4, return_sequences=True, name="gru"), name="both")(h)
h = keras.layers.TimeDistributed(keras.layers.Dense(6, name="each"), name="steps")(h)
h = keras.layers.RNN(keras.layers.SimpleRNNCell(4, name="cell"), name="rnn")(h)
model = keras.Model(inputs, keras.layers.Dense(1, name="head")(h))
model.compile("rmsprop", "mse")
x = np.random.default_rng(9).random((24, 6, 5), dtype="float32")
model.fit(x, x.sum((1, 2)), batch_size=8, verbose=0)

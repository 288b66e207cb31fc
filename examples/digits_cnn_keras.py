# SPDX-License-Identifier: Apache-2.0
"""A small convolutional net with batch normalization on scikit-learn's 8x8 digits, in Keras.

KERAS_BACKEND chooses what Keras computes with: tensorflow, jax or torch.
"""

import argparse

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def conv_block(filters):
    return [
        layers.Conv2D(filters, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
    ]


def build_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *conv_block(96),
            *conv_block(96),
            layers.MaxPooling2D(),
            *conv_block(192),
            *conv_block(192),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)

    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]  # grey values from 0 to 16
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, digits.target, test_size=0.2, random_state=args.seed, stratify=digits.target
    )

    model = build_model()
    steps_per_epoch = -(-len(train_images) // args.batch_size)
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(args.lr, args.epochs * steps_per_epoch)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(train_images, train_labels, batch_size=args.batch_size, epochs=args.epochs, verbose=0)
    for epoch, loss in enumerate(history.history["loss"], start=1):
        print(f"epoch {epoch:2d}  loss {loss:.4f}", flush=True)
    _, accuracy = model.evaluate(test_images, test_labels, batch_size=256, verbose=0)
    print(f"test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()

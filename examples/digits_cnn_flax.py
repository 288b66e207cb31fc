# SPDX-License-Identifier: Apache-2.0
"""A small convolutional net with batch normalization on scikit-learn's 8x8 digits, in Flax and optax."""

import argparse
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class ConvBlock(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(self.channels, (3, 3), use_bias=False, name="conv")(x)
        return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = ConvBlock(96, name="block1")(x, train)
        x = ConvBlock(96, name="block2")(x, train)
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = ConvBlock(192, name="block3")(x, train)
        x = ConvBlock(192, name="block4")(x, train)
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(128, name="hidden")(x.reshape(len(x), -1)))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(10, name="head")(x)


class TrainState(train_state.TrainState):
    batch_stats: Any
    key: jax.Array


@partial(jax.jit, donate_argnums=0)
def train_step(state, images, labels):
    """Update the weights and the running statistics; return the batch's loss too."""

    def loss_fn(params):
        logits, changed = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            images,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(state.key, state.step)},
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, changed["batch_stats"]

    (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), loss


@jax.jit
def predict(state, images):
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    return state.apply_fn(variables, images, train=False).argmax(axis=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., None]
    split = train_test_split(images, digits.target, test_size=0.2, random_state=args.seed, stratify=digits.target)
    train_images, test_images, train_labels, test_labels = split
    steps = len(train_images) // args.batch_size  # the last, smaller batch of an epoch would be compiled again

    net = Net()
    init_key, dropout_key = jax.random.split(jax.random.key(args.seed))
    variables = net.init(init_key, train_images[:1], train=False)
    state = TrainState.create(
        apply_fn=net.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        key=dropout_key,
        tx=optax.adamw(optax.cosine_decay_schedule(args.lr, args.epochs * steps), weight_decay=1e-4),
    )
    order = np.random.default_rng(args.seed)
    for epoch in range(1, args.epochs + 1):
        losses = []
        for batch in order.permutation(len(train_images))[: steps * args.batch_size].reshape(steps, -1):
            state, loss = train_step(state, train_images[batch], train_labels[batch])
            losses.append(loss)
        print(f"epoch {epoch:2d}  loss {jnp.stack(losses).mean():.4f}", flush=True)
    print(f"test accuracy {np.mean(predict(state, test_images) == test_labels):.3f}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A character-level GPT (10.8 M parameters) on the English of Python's own help topics, in Flax and optax."""

import argparse
import math
import time
from functools import partial
from pydoc_data.topics import topics

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.serialization import to_bytes
from flax.training.train_state import TrainState


def load_text():
    """Return the training and validation characters as index arrays, and the vocabulary."""
    text = "\n".join(topics[name] for name in sorted(topics))
    vocabulary = sorted(set(text))
    index = {character: i for i, character in enumerate(vocabulary)}
    data = np.array([index[character] for character in text], dtype=np.int32)
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:], vocabulary


def draw_batch(data, batch_size, context, generator):
    """Draw random windows and the same windows moved on by one character."""
    starts = generator.integers(len(data) - context - 1, size=(batch_size, 1))
    windows = data[starts + np.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]


SMALL = nn.initializers.normal(0.02)


class Attention(nn.Module):
    heads: int
    residual_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, x):
        batch, length, width = x.shape
        qkv = nn.Dense(3 * width, kernel_init=SMALL, name="qkv")(x).reshape(batch, length, 3, self.heads, -1)
        y = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
        return nn.Dense(width, kernel_init=self.residual_init, name="proj")(y.reshape(batch, length, width))


class Block(nn.Module):
    heads: int
    residual_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        x = x + Attention(self.heads, self.residual_init, name="attention")(nn.LayerNorm(name="norm1")(x))
        y = nn.gelu(nn.Dense(4 * width, kernel_init=SMALL, name="up")(nn.LayerNorm(name="norm2")(x)))
        return x + nn.Dense(width, kernel_init=self.residual_init, name="down")(y)


class GPT(nn.Module):
    vocabulary_size: int
    context: int
    width: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, indices):
        positions = self.param("positions", SMALL, (self.context, self.width))
        x = nn.Embed(self.vocabulary_size, self.width, embedding_init=SMALL, name="tokens")(indices)
        x = x + positions[: indices.shape[1]]
        # GPT-2: the residual branches start smaller the deeper the net
        residual_init = nn.initializers.normal(0.02 / math.sqrt(2 * self.layers))
        for i in range(self.layers):
            x = Block(self.heads, residual_init, name=f"block{i}")(x)
        return nn.Dense(self.vocabulary_size, use_bias=False, kernel_init=SMALL, name="head")(
            nn.LayerNorm(name="norm")(x)
        )


def loss_fn(params, apply_fn, indices, targets):
    logits = apply_fn({"params": params}, indices)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


@partial(jax.jit, donate_argnums=0)
def train_step(state, indices, targets):
    loss, grads = jax.value_and_grad(loss_fn)(state.params, state.apply_fn, indices, targets)
    return state.apply_gradients(grads=grads), loss


@jax.jit
def evaluate(state, indices, targets):
    return loss_fn(state.params, state.apply_fn, indices, targets)


def validate(state, data, args):
    """Mean loss on the same windows every time."""
    generator = np.random.default_rng(args.seed)
    losses = [
        evaluate(state, *draw_batch(data, args.batch_size, args.context, generator)) for _ in range(args.eval_batches)
    ]
    return float(sum(losses) / len(losses))


def make_optimizer(lr, warmup):
    """AdamW with weight decay on the matrices only, clipping and warm-up."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            lambda step: lr * jax.numpy.minimum(1.0, (step + 1) / warmup),
            b1=0.9,
            b2=0.95,
            weight_decay=0.1,
            mask=lambda params: jax.tree.map(lambda p: p.ndim >= 2, params),
        ),
    )


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-every", type=int, default=100, help="steps between validations")
    parser.add_argument("--eval-batches", type=int, default=10)
    parser.add_argument("--out", help="where to save the trained weights")
    return parser.parse_args()


def main():
    args = parse_args()
    train_data, validation_data, vocabulary = load_text()
    model = GPT(len(vocabulary), args.context, args.width, args.layers, args.heads)
    params = model.init(jax.random.key(args.seed), train_data[None, : args.context])["params"]
    optimizer = make_optimizer(args.lr, warmup=max(1, min(100, args.steps // 10)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
    generator = np.random.default_rng(args.seed)
    parameters = sum(p.size for p in jax.tree.leaves(params))
    print(f"{parameters / 1e6:.1f} M parameters, {len(vocabulary)} characters")

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        state, loss = train_step(state, *draw_batch(train_data, args.batch_size, args.context, generator))
        if step % 10 == 0:
            loss = float(loss)  # waits for the step
            seconds = (time.perf_counter() - started) / step
            print(f"step {step:5d}  loss {loss:.4f}  {seconds:.2f} s/step", flush=True)
        if step % args.eval_every == 0 and step < args.steps:
            print(f"step {step:5d}  validation loss {validate(state, validation_data, args):.4f}", flush=True)

    print(f"validation loss {validate(state, validation_data, args):.4f}")
    if args.out:
        with open(args.out, "wb") as file:
            file.write(to_bytes(state.params))


if __name__ == "__main__":
    main()

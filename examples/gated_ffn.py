# SPDX-License-Identifier: Apache-2.0
"""A small language model with T5 v1.1's gated feed-forward, tuned on the English of Python's help topics.

Large pretrained models hold a few hidden channels that answer to the first token with values thousands of
times the usual ("massive activations", Sun et al. 2024; for T5 see huggingface/transformers issue 5651).
No checkpoint is downloaded here: `massive_channels` writes such channels into one block of a fresh model.
"""

import argparse
import math
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class GatedFFN(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.wi_0 = nn.Linear(width, hidden, bias=False)
        self.wi_1 = nn.Linear(width, hidden, bias=False)
        self.wo = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.wo(F.gelu(self.wi_0(x)) * self.wi_1(x))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, hidden, heads):
        super().__init__()
        self.attention_norm = RMSNorm(width)
        self.attention = Attention(width, heads)
        self.ffn_norm = RMSNorm(width)
        self.ffn = GatedFFN(width, hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Model(nn.Module):
    def __init__(self, vocabulary_size, context, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 2 * width, heads) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):  # T5 draws its matrices with the fan-in's scale
                nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def embed(self, indices):
        return self.tokens(indices) + self.positions.weight[: indices.shape[1]]

    def forward(self, indices):
        x = self.embed(indices)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@torch.no_grad()
def massive_channels(model, layer, first_token, channels=4, factor=400.0, push=300.0):
    """Let some hidden channels of one block answer the first token with `factor` in both of their factors."""
    x = model.embed(torch.tensor([[first_token]]))
    for block in model.blocks[:layer]:
        x = block(x)
    block = model.blocks[layer]
    x = block.ffn_norm(x + block.attention(block.attention_norm(x))).flatten()
    for matrix in (block.ffn.wi_0, block.ffn.wi_1):
        matrix.weight[:channels] = factor * x / x.dot(x)
    block.ffn.wo.weight[:, :channels] *= push / factor**2 / math.sqrt(channels / x.numel())


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    text = "\n".join(topics[name] for name in sorted(topics))
    vocabulary = ["<s>", *sorted(set(text))]
    index = {character: i for i, character in enumerate(vocabulary)}
    data = torch.tensor([index[character] for character in text])

    model = Model(len(vocabulary), args.context, args.width, args.layers, args.heads)
    massive_channels(model, layer=args.layers // 2, first_token=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(data) - args.context, (args.batch_size, 1))
        targets = data[starts + torch.arange(args.context)]
        inputs = F.pad(targets[:, :-1], (1, 0), value=0)  # every sequence starts with <s>
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

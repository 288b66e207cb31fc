# SPDX-License-Identifier: Apache-2.0
"""A small language model with T5 v1.1's gated feed-forward, tuned on the English of Python's help topics.

Large pretrained models hold a few hidden channels that answer to the first token with values thousands of
times the usual (massive activations, arXiv 2402.17762; for T5 see huggingface/transformers issue 5651).
No checkpoint is downloaded here: `massive_channels` writes such channels into one block of a fresh model.
"""

import argparse
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
def massive_channels(model, layer, inputs, channels=2, peak=1200.0, push=10.0):
    """Let some hidden channels of one block answer the first token with `peak` in both of their factors.

    The rows solve a ridge regression, so they stay as quiet as possible on all other tokens. The columns of
    `wo` are scaled so that the first token's residual moves by about `push`.
    """
    x = model.embed(inputs)
    for block in model.blocks[:layer]:
        x = block(x)
    block = model.blocks[layer]
    x = block.ffn_norm(x + block.attention(block.attention_norm(x)))
    first, others = x[0, 0], x[:, 1:].flatten(0, 1)
    covariance = others.T @ others / len(others)
    row = torch.linalg.solve(covariance + 0.1 * torch.eye(len(first)), first)
    row *= peak / row.dot(first)
    block.ffn.wi_0.weight[:channels] = row
    block.ffn.wi_1.weight[:channels] = row
    columns = block.ffn.wo.weight[:, :channels]
    columns *= push / (peak**2 * columns.sum(dim=1).abs().max())


def load_text():
    """Return the text as indices, with <s> as number 0, and the size of the vocabulary."""
    text = "\n".join(topics[name] for name in sorted(topics))
    vocabulary = ["<s>", *sorted(set(text))]
    index = {character: i for i, character in enumerate(vocabulary)}
    return torch.tensor([index[character] for character in text]), len(vocabulary)


def draw_batch(data, batch_size, context):
    """Draw random windows as targets; as inputs they are moved back by one and start with <s>."""
    starts = torch.randint(len(data) - context, (batch_size, 1))
    targets = data[starts + torch.arange(context)]
    return F.pad(targets[:, :-1], (1, 0), value=0), targets


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    data, vocabulary_size = load_text()
    model = Model(vocabulary_size, args.context, args.width, args.layers, args.heads)
    massive_channels(model, args.layers // 2, draw_batch(data, 128, args.context)[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        inputs, targets = draw_batch(data, args.batch_size, args.context)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

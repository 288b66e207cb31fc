# SPDX-License-Identifier: Apache-2.0
"""A character-level GPT (10.8 M parameters) on the English of Python's own help topics."""

import argparse
import math
import time
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn


def load_text():
    """Return the training and validation characters as index tensors, and the vocabulary."""
    text = "\n".join(topics[name] for name in sorted(topics))
    vocabulary = sorted(set(text))
    index = {character: i for i, character in enumerate(vocabulary)}
    data = torch.tensor([index[character] for character in text])
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:], vocabulary


def draw_batch(data, batch_size, context, generator):
    """Draw random windows and the same windows moved on by one character."""
    starts = torch.randint(len(data) - context - 1, (batch_size, 1), generator=generator)
    windows = data[starts + torch.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary_size, context, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        self.apply(self.init_weights)
        for block in self.blocks:  # GPT-2: the residual branches start smaller the deeper the net
            for linear in (block.attention.proj, block.mlp[2]):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * layers))

    @staticmethod
    def init_weights(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, indices, targets):
        x = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(model, data, args):
    """Mean loss on the same windows every time."""
    model.eval()
    generator = torch.Generator().manual_seed(args.seed)
    losses = [
        model(*draw_batch(data, args.batch_size, args.context, generator)).item() for _ in range(args.eval_batches)
    ]
    model.train()
    return sum(losses) / len(losses)


def make_optimizer(model, lr):
    """AdamW with weight decay on the matrices only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


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
    torch.manual_seed(args.seed)
    train_data, validation_data, vocabulary = load_text()
    model = GPT(len(vocabulary), args.context, args.width, args.layers, args.heads)
    optimizer = make_optimizer(model, args.lr)
    warmup = max(1, min(100, args.steps // 10))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    generator = torch.Generator().manual_seed(args.seed)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {len(vocabulary)} characters")

    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        loss = model(*draw_batch(train_data, args.batch_size, args.context, generator))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            seconds = (time.perf_counter() - started) / step
            print(f"step {step:5d}  loss {loss.item():.4f}  {seconds:.2f} s/step", flush=True)
        if step % args.eval_every == 0 and step < args.steps:
            print(f"step {step:5d}  validation loss {validate(model, validation_data, args):.4f}", flush=True)

    print(f"validation loss {validate(model, validation_data, args):.4f}")
    if args.out:
        torch.save({"model": model.state_dict(), "vocabulary": vocabulary, "args": vars(args)}, args.out)


if __name__ == "__main__":
    main()

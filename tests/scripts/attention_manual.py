import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.w_qkv = nn.Parameter(torch.randn(3 * dim, dim) * dim ** -0.5)
        self.w_out = nn.Parameter(torch.randn(dim, dim) * dim ** -0.5)
        self.b_out = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = F.linear(x, self.w_qkv).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        att = att.masked_fill(mask, float("-inf")).softmax(dim=-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return x + F.linear(y, self.w_out, self.b_out)


class Model(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.emb = nn.Parameter(torch.randn(vocab, dim) * 0.1)
        self.pos = nn.Parameter(torch.randn(16, dim) * 0.1)
        self.att = nn.ModuleList([SelfAttention(dim, 4) for _ in range(2)])

    def forward(self, idx):
        x = self.emb[idx] + self.pos[: idx.size(1)]
        for layer in self.att:
            x = layer(F.layer_norm(x, x.shape[-1:]))
        return torch.einsum("btc,vc->btv", x, self.emb)


model = Model(vocab=20)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    idx = torch.randint(0, 20, (16, 16))
    logits = model(idx)
    # predict the previous token: position t must look at t-1
    loss = F.cross_entropy(logits[:, 1:].reshape(-1, 20), idx[:, :-1].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step:3d} | loss {loss.item():.4f}")

"""usage: argparse_script.py NAME --lr LR [--steps N] [--hidden N]"""
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("name", help="name of the run")
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--hidden", type=int, default=32)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--no-bias", action="store_true")
args = parser.parse_args()

torch.manual_seed(args.seed)
bias = not args.no_bias
model = nn.Sequential(nn.Linear(8, args.hidden, bias=bias), nn.Tanh(), nn.Linear(args.hidden, 1, bias=bias))
opt = torch.optim.SGD(model.parameters(), lr=args.lr)

x = torch.rand(128, 8)
y = torch.sin(3 * x[:, :1]) + x[:, 1:2] ** 2

for step in range(args.steps):
    loss = ((model(x) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0 or step == args.steps - 1:
        print(f"{args.name}: step {step} loss {loss.item():.5f}")

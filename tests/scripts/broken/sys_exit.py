import os
import sys

import torch

DATA = "/data/imagenet-that-is-not-here/train"
if not os.path.isdir(DATA):
    print(f"cannot find the training data in {DATA}", file=sys.stderr)
    sys.exit(3)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())

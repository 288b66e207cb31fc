# scientific computing: everything in double precision
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)
x = torch.from_numpy(rng.uniform(-2, 2, size=(200, 2)))  # float64 from numpy
y = torch.exp(-(x ** 2).sum(dim=1, keepdim=True))

model = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(30):
    optimizer.zero_grad()
    loss = torch.mean((model(x) - y) ** 2)
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.12f}")

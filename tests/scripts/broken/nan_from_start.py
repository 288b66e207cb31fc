# one column of the table has missing values
import torch
from torch import nn

torch.manual_seed(0)
table = torch.randn(256, 6)
table[::7, 3] = float("nan")
x, y = table[:, :5], table[:, 5:]

model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    idx = torch.randint(0, 256, (64,))
    loss = nn.functional.mse_loss(model(x[idx]), y[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())

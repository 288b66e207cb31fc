import torch
from torch import nn

torch.manual_seed(0)


class Rotate(nn.Module):
    def forward(self, x):
        return torch.stack([-x[:, 1], x[:, 0]], dim=1)


model = nn.Sequential(Rotate(), nn.ReLU())
for step in range(10):
    x = torch.randn(16, 2)
    loss = nn.functional.mse_loss(model(x), x)
    print("step", step, "loss", loss.item())
    loss.backward()

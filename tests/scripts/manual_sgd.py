# my own SGD, no torch.optim
import torch
import torch.nn as nn

torch.manual_seed(0)
learning_rate = 0.1

net = nn.Sequential(nn.Linear(6, 20), nn.Sigmoid(), nn.Linear(20, 1))
x = torch.randn(200, 6)
t = (x ** 2).sum(1, keepdim=True) / 6

for it in range(30):
    out = net(x)
    loss = nn.functional.mse_loss(out, t)
    net.zero_grad()
    loss.backward()
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-learning_rate)
    print("iter", it, "loss", loss.item())

import torch
from torch import nn

torch.set_default_dtype(torch.bfloat16)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

x = torch.randn(256, 8)
w = torch.randn(8, 1)
y = x @ w

for epoch in range(30):
    pred = model(x)
    loss = torch.nn.functional.mse_loss(pred, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("epoch %d loss %.4f" % (epoch, loss.item()))

import torch
from torch import nn

if not hasattr(torch, "fancy_new_feature"):
    raise ImportError("this script needs a build of torch with fancy_new_feature")

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.randn(8, 2)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())

import torch
from torch import nn

torch.manual_seed(0)
examples = [torch.randn(16, 4) for _ in range(7)]  # the loop below wants more


def next_batch(step):
    batch = examples[step]
    return batch, batch.sum(dim=1, keepdim=True)


model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    x, y = next_batch(step)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())

# effective batch of 64 = 4 micro batches of 16
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
accumulation_steps = 4

model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

data = torch.randn(30 * accumulation_steps, 16, 24)
labels = data[..., :5].argmax(-1)

model.zero_grad()
running = 0.0
for i, (x, y) in enumerate(zip(data, labels)):
    loss = F.cross_entropy(model(x), y)
    loss = loss / accumulation_steps
    loss.backward()
    running += loss.item()
    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(f"update {(i + 1) // accumulation_steps:2d}  loss {running:.4f}")
        running = 0.0

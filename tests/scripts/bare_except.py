# "robust" training: one bad batch must not stop the run overnight
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
failed = 0

for step in range(60):
    try:
        x = torch.randn(32, 6)
        try:
            pred = model(x)
            loss = ((pred - x.mean(dim=1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except Exception as e:
            print("batch", step, "failed:", e)
            failed += 1
            continue
        if step % 10 == 0:
            print("step", step, "loss", loss.item())
    except:
        print("something went wrong, going on")
        failed += 1

print("done,", failed, "failed batches")

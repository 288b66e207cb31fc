import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
history = []

try:
    for step in range(30):
        x = torch.randn(32, 10)
        y = (x[:, 0] > x[:, 1]).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        print(f"step {step} loss {history[-1]:.4f}")
finally:
    # whatever happens, keep what we have
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}, "final.pt")
    print("saved final.pt after", len(history), "steps")

import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
np.random.seed(0)


class Regressor(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_in, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def r2_score(pred, true):
    return 1.0 - np.sum((true - pred) ** 2) / np.sum((true - true.mean()) ** 2)


x = np.random.randn(400, 10).astype("float32")
y = (x[:, 0] + 0.5 * x[:, 1] * x[:, 2]).astype("float32")
x_train, y_train = torch.tensor(x[:300]), torch.tensor(y[:300])
x_val, y_val = torch.tensor(x[300:]), y[300:]

model = Regressor(10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.MSELoss()
best = -np.inf

for step in range(30):
    model.train()
    idx = torch.randperm(300)[:64]
    optimizer.zero_grad()
    loss = criterion(model(x_train[idx]), y_train[idx])
    loss.backward()
    optimizer.step()

    if step % 5 == 4:
        model.eval()
        with torch.no_grad():
            predictions = model(x_val).cpu().numpy()
        r2 = r2_score(predictions, y_val)
        best = max(best, r2)
        print(f"step {step + 1} train loss {loss.item():.4f} val r2 {r2:.4f} best {best:.4f}")

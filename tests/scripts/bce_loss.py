import torch
import torch.nn as nn

torch.manual_seed(1)


class LogisticNet(nn.Module):
    def __init__(self, n_features):
        super(LogisticNet, self).__init__()
        self.hidden = nn.Linear(n_features, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        x = torch.relu(self.hidden(x))
        return torch.sigmoid(self.out(x))


X = torch.randn(500, 12)
Y = ((X[:, 0] - X[:, 1]) > 0.3).float().unsqueeze(1)

model = LogisticNet(12)
criterion = nn.BCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(5):
    for i in range(0, 480, 80):
        y_pred = model(X[i : i + 80])
        loss = criterion(y_pred, Y[i : i + 80])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    acc = ((model(X) > 0.5).float() == Y).float().mean()
    print("Epoch {}: loss {:.4f}, acc {:.3f}".format(epoch, loss.item(), acc.item()))

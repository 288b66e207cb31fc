import torch
import torch.nn as nn
import torch.nn.functional as F


class LabelSmoothingLoss(nn.Module):
    def __init__(self, classes, smoothing=0.1):
        super().__init__()
        self.confidence = 1.0 - smoothing
        self.smoothing = smoothing
        self.cls = classes

    def forward(self, pred, target):
        log_probs = pred.log_softmax(dim=-1)
        with torch.no_grad():
            true_dist = torch.full_like(log_probs, self.smoothing / (self.cls - 1))
            true_dist.scatter_(1, target.unsqueeze(1), self.confidence)
        return torch.mean(torch.sum(-true_dist * log_probs, dim=-1))


def entropy(pred):
    p = torch.exp(pred) / torch.exp(pred).sum(dim=-1, keepdim=True)
    return -(p * torch.log(p + 1e-8)).sum(dim=-1).mean()


def focal_weight(pred, target, gamma=2.0):
    pt = F.softmax(pred, dim=-1).gather(1, target[:, None]).squeeze(1)
    return (1 - pt).pow(gamma).mean()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))
criterion = LabelSmoothingLoss(6)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(30):
    x = torch.randn(48, 10)
    target = x[:, :6].argmax(dim=1)
    pred = model(x)
    loss = criterion(pred, target) - 0.01 * entropy(pred) + 0.1 * focal_weight(pred, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step}: {loss.item():.4f}")

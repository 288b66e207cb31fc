# slow learning rate for the backbone, fast one for the head
import torch
from torch import nn

torch.manual_seed(3)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


model = Model()
opt_backbone = torch.optim.SGD(model.backbone.parameters(), lr=0.01, momentum=0.9)
opt_head = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
loss_fn = nn.CrossEntropyLoss()

for step in range(30):
    x = torch.randn(64, 16)
    y = (x[:, 0] + x[:, 1] > 0).long()
    loss = loss_fn(model(x), y)
    for opt in (opt_backbone, opt_head):
        opt.zero_grad()
    loss.backward()
    for opt in (opt_backbone, opt_head):
        opt.step()
    print(step, loss.item())

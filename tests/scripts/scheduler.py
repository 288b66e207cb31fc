import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

torch.manual_seed(0)

EPOCHS = 3
STEPS_PER_EPOCH = 10

model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = OneCycleLR(optimizer, max_lr=0.1, epochs=EPOCHS, steps_per_epoch=STEPS_PER_EPOCH)

for epoch in range(EPOCHS):
    for _ in range(STEPS_PER_EPOCH):
        x = torch.rand(64, 5)
        y = x.max(dim=1, keepdim=True).values
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(f"epoch {epoch} loss {loss.item():.5f} lr {scheduler.get_last_lr()[0]:.5f}")

# measure the untrained model sample by sample, then train
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
loss_fn = nn.CrossEntropyLoss()

test_x = torch.randn(3000, 8)
test_y = (test_x.sum(dim=1) > 0).long()


def test():
    model.eval()
    correct = 0
    with torch.no_grad():
        for sample, label in zip(test_x, test_y):
            correct += int(model(sample.unsqueeze(0)).argmax(1).item() == label.item())
    model.train()
    return correct / len(test_x)


print("accuracy before training", test())

optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    x = torch.randn(64, 8)
    y = (x.sum(dim=1) > 0).long()
    loss = loss_fn(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())

print("accuracy after training", test())

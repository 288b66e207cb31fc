# transfer learning: frozen feature extractor, new head
import torch
import torch.nn as nn

torch.manual_seed(0)

backbone = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
)
for param in backbone.parameters():
    param.requires_grad = False
backbone.eval()

head = nn.Linear(8 * 16, 3)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
print("trainable:", sum(p.numel() for p in model.parameters() if p.requires_grad))

for step in range(30):
    labels = torch.randint(0, 3, (24,))
    images = torch.randn(24, 1, 12, 12) * 0.3
    for i, k in enumerate(labels):
        images[i, 0, 4 * k : 4 * k + 4] += 1.0
    outputs = model(images)
    loss = criterion(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss:", "%.4f" % loss.item())

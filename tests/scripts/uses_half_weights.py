# pure fp16 to save memory
import torch
import torch.nn as nn

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
model = model.to(device).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()

inputs = torch.randn(30, 32, 16)
labels = inputs[..., :4].argmax(-1)

for step, (x, y) in enumerate(zip(inputs, labels)):
    x = x.half().to(device)
    y = y.to(device)
    out = model(x)
    loss = criterion(out.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), out.dtype)

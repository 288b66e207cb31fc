import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()

for step in range(30):
    x = torch.randn(64, 32, device=device)
    y = x[:, :10].argmax(dim=1)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        logits = model(x)
        loss = criterion(logits, y)
    loss.backward()  # no GradScaler needed with bfloat16
    optimizer.step()
    if step % 3 == 0:
        print(f"step {step} loss {loss.item():.4f} logits {logits.dtype}")

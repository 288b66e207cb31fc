import torch
from torch import nn

torch.manual_seed(0)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 64)
        self.norm = nn.LayerNorm(64)
        self.down = nn.Linear(64, 4)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.norm(self.up(x))))


model = MLP()
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(30):
    x = torch.randn(32, 16)
    y = x[:, :4].argmax(dim=1)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step}: {loss.item():.4f}")

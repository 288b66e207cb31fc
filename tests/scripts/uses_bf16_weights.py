import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self, vocab=50, dim=32, classes=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, tokens):
        return self.out(self.norm(self.emb(tokens).mean(dim=1)))


model = Classifier().to(torch.bfloat16)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
print("parameters:", next(model.parameters()).dtype)

for step in range(30):
    tokens = torch.randint(0, 50, (32, 12))
    target = (tokens < 25).sum(dim=1) // 4
    loss = F.cross_entropy(model(tokens).float(), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.4f}")

# skip-gram with negative sampling, sparse gradients
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
VOCAB, DIM, NEG = 200, 16, 5


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(VOCAB, DIM, sparse=True)
        self.context = nn.Embedding(VOCAB, DIM, sparse=True)

    def forward(self, c, pos, neg):
        v = self.center(c)
        pos_score = (v * self.context(pos)).sum(-1)
        neg_score = torch.bmm(self.context(neg), v.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(pos_score) + F.logsigmoid(-neg_score).sum(1)).mean()


model = SkipGram()
optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.05)

for it in range(30):
    c = torch.randint(0, VOCAB, (128,))
    pos = (c + torch.randint(1, 4, (128,))) % VOCAB
    neg = torch.randint(0, VOCAB, (128, NEG))
    optimizer.zero_grad()
    loss = model(c, pos, neg)
    loss.backward()
    optimizer.step()
    if it % 5 == 0:
        print(f"iter {it} loss {loss.item():.3f}")

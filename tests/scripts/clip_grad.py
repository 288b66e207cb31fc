import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
max_grad_norm = 0.5

rnn = nn.GRU(input_size=4, hidden_size=24, batch_first=True)
readout = nn.Linear(24, 1)
params = list(rnn.parameters()) + list(readout.parameters())
optimizer = torch.optim.RMSprop(params, lr=3e-3)

for step in range(30):
    seq = torch.randn(32, 10, 4)
    target = seq[:, :, 0].sum(dim=1, keepdim=True)
    _, h = rnn(seq)
    loss = nn.functional.mse_loss(readout(h[-1]), target)
    optimizer.zero_grad()
    loss.backward()
    total_norm = clip_grad_norm_(params, max_grad_norm)
    optimizer.step()
    print(f"step {step:2d} loss {loss.item():.4f} grad norm {total_norm.item():.3f}")

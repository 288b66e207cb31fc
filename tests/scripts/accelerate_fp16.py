import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="fp16", cpu=not torch.cuda.is_available())

model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(320, 8)
dataset = torch.utils.data.TensorDataset(x, x.mean(dim=1, keepdim=True))
dataloader = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True)

model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
loss_fn = nn.MSELoss()

for step, (inputs, target) in enumerate(dataloader):
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), target)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    note = " (skipped)" if accelerator.optimizer_step_was_skipped else ""
    print(f"step {step} loss {loss.item():.4f}{note}")

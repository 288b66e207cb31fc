import torch
from torch import nn
from torch.amp import GradScaler, autocast

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = True

net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=10, gamma=0.5)
loss_fn = nn.MSELoss()
scaler = GradScaler(device, enabled=use_amp)

for i in range(30):
    inputs = torch.randn(32, 16, device=device)
    targets = inputs[:, :4].sum(dim=1, keepdim=True)

    with autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
        output = net(inputs)
        loss = loss_fn(output, targets)

    opt.zero_grad()
    scaler.scale(loss).backward()

    # gradient clipping works on the unscaled gradients
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)

    scale = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() >= scale:  # the step was not skipped
        scheduler.step()
    print(f"iter {i} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

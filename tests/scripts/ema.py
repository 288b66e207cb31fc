import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)


class ModelEma:
    """hand-written exponential moving average, as in timm"""

    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, m in zip(self.module.state_dict().values(), model.state_dict().values()):
            e.copy_(self.decay * e + (1.0 - self.decay) * m)


model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
ema = ModelEma(model)
ema2 = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
val_x = torch.randn(200, 7)
val_y = val_x.sum(1, keepdim=True)

for step in range(30):
    x = torch.randn(32, 7)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    ema2.update_parameters(model)
    if step % 10 == 9:
        with torch.no_grad():
            val = [nn.functional.mse_loss(m(val_x), val_y).item() for m in (model, ema.module, ema2)]
        print(f"step {step} loss {loss.item():.4f} val {val[0]:.4f} ema {val[1]:.4f} swa_utils {val[2]:.4f}")

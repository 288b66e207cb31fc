# Poor man's configuration: defaults, then config_small.py, then --key=value from the command line.
import sys
from ast import literal_eval

import torch
from torch import nn

# ----- default values -----
batch_size = 64
n_hidden = 256
max_iters = 1000
learning_rate = 1e-3
seed = 1337
# --------------------------
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("config_small.py").read())
for arg in sys.argv[1:]:
    key, val = arg.lstrip("-").split("=")
    if key not in globals():
        raise ValueError(f"Unknown config key: {key}")
    print(f"Overriding: {key} = {val}")
    globals()[key] = literal_eval(val)
config = {k: globals()[k] for k in config_keys}
print(config)

torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(16, n_hidden), nn.ReLU(), nn.Linear(n_hidden, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

iter_num = 0
while True:
    x = torch.randn(batch_size, 16)
    loss = nn.functional.mse_loss(model(x), x.flip(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}")
    iter_num += 1
    if iter_num > max_iters:
        break

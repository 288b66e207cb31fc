# deepspeed deepspeed_config.py
import argparse
import sys

import torch
from torch import nn

try:
    import deepspeed
except ImportError:
    deepspeed = None

ds_config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
    "gradient_clipping": 1.0,
    "fp16": {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "zero_optimization": {"stage": 2, "overlap_comm": True},
}

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()

if deepspeed is None:
    sys.exit("This script needs DeepSpeed: pip install deepspeed")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)

for step in range(args.steps):
    x = torch.randn(16, 32, device=engine.device, dtype=torch.half)
    loss = nn.functional.mse_loss(engine(x).float(), x.flip(-1).float())
    engine.backward(loss)
    engine.step()
    if engine.global_rank == 0:
        print(f"step {step} loss {loss.item():.4f} scale {optimizer.cur_scale}")

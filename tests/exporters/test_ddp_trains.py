# SPDX-License-Identifier: Apache-2.0
"""DDP trains on two processes as its exported texts say, and refuses the hook that the exporter leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.exporters.running import run_torchrun
from tests.exporters.texts import exported

from floatwise.plan import LossScale, Reductions, recipe

pytestmark = pytest.mark.slow

PROGRAM = """
import json, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()

def short(tensor):
    return str(tensor.dtype).removeprefix("torch.")

def train(text):
    scope = {}
    exec(text, scope)
    scaler = scope.get("SCALER") or torch.amp.GradScaler("cpu", enabled=False)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)))
    scope.get("compress_gradients", lambda m: None)(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    scales, exact = [], []
    seen = {}
    model.module[0].register_forward_hook(lambda m, a, out: seen.update(inner=short(out), weight=short(m.weight)))
    for step in range(4):
        x = torch.randn(4, 8)
        with scope["autocast"]():
            loss = model(x).float().pow(2).mean()
        factor = float("inf") if step == 2 and rank == 1 and scaler.is_enabled() else 1.0
        scaler.scale(loss * factor).backward()
        # The trace of the reduction: sums that were cast to 16 bits are multiples of their last place.
        grad = model.module[0].weight.grad
        exact.append([bool(torch.equal(grad, grad.to(low).float())) for low in (torch.float16, torch.bfloat16)])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    weights = [p.detach().clone() for p in model.parameters()]
    for weight in weights:
        dist.broadcast(weight, 0)
    return {
        "seen": seen, "scales": scales, "exact": exact[0],
        "params": sorted({short(p) for p in model.parameters()}), "grad": short(grad),
        "states": sorted({short(v) for s in optimizer.state.values() for k, v in s.items() if k != "step"}),
        "agree": all(torch.equal(a, b) for a, b in zip(weights, model.parameters())),
    }

rows = {name: train(text) for name, text in json.load(open("exported.json")).items()}
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
try:
    DistributedDataParallel(nn.Linear(2, 2)).register_comm_hook(None, bf16_compress_hook)
except TypeError as error:
    rows["trap"] = str(error)
json.dump(rows, open(f"result.{rank}", "w"))
dist.destroy_process_group()
"""


def test_each_text_trains_in_its_formats_and_skips_overflows_together(tmp_path: Path) -> None:
    scale = LossScale(initial_scale=64.0, floor=32.0)
    low = recipe("fp16-mixed", loss_scale=scale, reductions=Reductions(reduce_dtype="float16"))
    plans = {
        "float32": (recipe("fp32"), {}),
        "bfloat16": (recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16")), {}),
        "float16": (low, {}),
        "float16 with our scaler": (low, {"scaler": "floatwise"}),
    }
    texts = {name: exported(plan, "ddp", device="cpu", **options).text for name, (plan, options) in plans.items()}
    (tmp_path / "exported.json").write_text(json.dumps(texts), encoding="utf-8")
    for rank in run_torchrun(PROGRAM, tmp_path):
        assert "NCCL" in rank.pop("trap")
        for name, got in rank.items():
            compute = name.split()[0]
            assert got["seen"] == {"inner": compute, "weight": "float32"}, name
            assert got["params"] == got["states"] == ["float32"], name
            assert got["grad"] == "float32", name
            assert got["exact"] == [compute == "float16", False], name  # on CPU bfloat16 is reduced in float32
            assert got["scales"] == ([64.0, 64.0, 32.0, 32.0] if compute == "float16" else [1.0] * 4), name
            assert got["agree"], name

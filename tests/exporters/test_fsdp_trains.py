# SPDX-License-Identifier: Apache-2.0
"""FSDP1 and FSDP2 train on two processes as their exported texts say, and the traps are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import run_torchrun
from tests.exporters.texts import exported

from floatwise.plan import LossScale, Plan, Policy, Reductions, recipe

pytestmark = pytest.mark.slow

# Collectives have other names in some versions of torch; a spy goes on each that is there.
COMMON = """
import json, sys, warnings, functools, torch, torch.distributed as dist
from torch import nn
warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
reduced = []

def spy(name):
    original = getattr(dist, name)
    @functools.wraps(original)
    def noting(*args, **kwargs):
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        reduced.extend(short(t) for t in tensors if t.numel() > 1)
        return original(*args, **kwargs)
    setattr(dist, name, noting)

def short(tensor):
    return str(tensor.dtype).removeprefix("torch.")

for name in ("reduce_scatter_tensor", "reduce_scatter_single", "reduce_scatter"):
    if hasattr(dist, name):
        spy(name)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))

def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

def fault(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]

def finish(rows):
    json.dump(rows, open(f"result.{rank}", "w"))
    dist.destroy_process_group()

def wrap(model, precision):
    if KIND == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mp_policy=precision)
        return model
    from torch.distributed.fsdp import FullyShardedDataParallel
    return FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), mixed_precision=precision, use_orig_params=True
    )
"""

TRAIN = """
def train(text):
    scope = {}
    exec(text, scope)
    scaler = scope.get("SCALER") or torch.amp.GradScaler("cpu", enabled=False)
    inner = net()
    seen = {}
    inner[0].register_forward_hook(
        lambda m, a, out: seen.update(inner=short(out), weight=short(m.weight), input=short(a[0]))
    )
    inner.register_buffer("running", torch.ones(3))
    model = wrap(inner, scope["MIXED_PRECISION"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    scales, moved = [], []
    for step in range(4):
        reduced.clear()
        out = model(torch.randn(4, 8))
        # One process alone overflows in the third step; both must skip it.
        factor = float("inf") if step == 2 and rank == 1 and scaler.is_enabled() else 1.0
        scaler.scale(out.float().pow(2).mean() * factor).backward()
        grads = {short(local(p.grad)) for p in model.parameters() if p.grad is not None}
        before = [local(p).detach().clone() for p in model.parameters()]
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        moved.append(any(bool((a != local(b)).any()) for a, b in zip(before, model.parameters())))
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return {
        "seen": seen, "out": short(out), "grads": sorted(grads), "reduced": sorted(set(reduced)),
        "params": sorted({short(local(p)) for p in model.parameters()}),
        "states": sorted({short(local(v)) for s in optimizer.state.values() for k, v in s.items() if k != "step"}),
        "buffer": short(dict(model.named_buffers()).popitem()[1]), "scales": scales, "moved": moved,
    }

finish({name: train(text) for name, text in json.load(open("exported.json")).items()})
"""

_HALF = Policy(compute_dtype="float16", output_dtype="float16")
_FLOAT16 = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=64.0, floor=32.0), policy=_HALF)
CASES: dict[str, tuple[Plan, dict[str, Any]]] = {
    "bfloat16": (recipe("bf16-mixed"), {}),
    "all bfloat16": (
        recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16", buffer_dtype="bfloat16")),
        {},
    ),
    "float16": (_FLOAT16, {"scaler": "torch"}),
    "float16 with our scaler": (_FLOAT16, {"scaler": "floatwise"}),
}


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_each_text_trains_in_its_formats_and_skips_overflows_together(kind: str, tmp_path: Path) -> None:
    texts = {name: exported(plan, kind, device="cpu", **options).text for name, (plan, options) in CASES.items()}
    (tmp_path / "exported.json").write_text(json.dumps(texts), encoding="utf-8")
    for rank in run_torchrun(f"KIND = {kind!r}\n" + COMMON + TRAIN, tmp_path):
        for name, got in rank.items():
            low = "float16" if name.startswith("float16") else "bfloat16"
            assert got["seen"] == {"inner": low, "weight": low, "input": low}, name
            assert got["params"] == got["grads"] == got["states"] == ["float32"], name
            assert got["reduced"] == ["bfloat16" if name == "all bfloat16" else "float32"], name
            assert got["buffer"] == ("bfloat16" if (kind, name) == ("fsdp1", "all bfloat16") else "float32")
            keeps_low = kind == "fsdp1" or low == "float16"
            assert got["out"] == (low if keeps_low else "float32"), name  # FSDP1 casts no outputs
            skips = low == "float16"
            assert got["scales"] == ([64.0, 64.0, 32.0, 32.0] if skips else [1.0] * 4), name
            assert got["moved"] == [True, True, not skips, True], name


TRAPS = """
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, fully_shard
policy = MixedPrecisionPolicy if KIND == "fsdp2" else MixedPrecision
low = torch.bfloat16
rows = {}

def step(model, backward_of=lambda out: out.float().pow(2).mean()):
    reduced.clear()
    out = model(torch.randn(4, 8))
    backward_of(out).backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    grads = sorted({short(local(p.grad)) for p in model.parameters() if p.grad is not None})
    error = fault(optimizer.step)
    states = sorted({short(local(v)) for s in optimizer.state.values() for k, v in s.items() if k != "step"})
    return {"grads": grads, "states": states, "reduced": sorted(set(reduced)), "error": error, "out": short(out),
            "params": sorted({short(local(p)) for p in model.parameters()})}

rows["reduce_none"] = step(wrap(net(), policy(param_dtype=low)))
rows["reduce_only"] = step(wrap(net(), policy(reduce_dtype=low)))
rows["low_weights"] = step(wrap(net().to(low), policy(param_dtype=low, reduce_dtype=torch.float32)))
cast = {"cast_forward_inputs" if KIND == "fsdp2" else "cast_root_forward_inputs": False}
rows["uncast"] = fault(lambda: wrap(net(), policy(param_dtype=low, **cast))(torch.randn(4, 8)))
half = wrap(net(), policy(param_dtype=torch.float16))
half(torch.randn(4, 8)).float().mean().mul(2.0**-30).backward()
rows["zero"] = sum(int((local(p.grad) != 0).sum()) for p in half.parameters() if p.grad is not None)
full = wrap(net(), policy(param_dtype=torch.float32))
full(torch.randn(4, 8)).float().mean().mul(2.0**-30).backward()
rows["not_zero"] = sum(int((local(p.grad) != 0).sum()) for p in full.parameters() if p.grad is not None) > 0
norms = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
rows["batch_norm"] = fault(lambda: wrap(norms, policy(param_dtype=low))(torch.randn(4, 8)))
model = wrap(net(), policy(param_dtype=low, reduce_dtype=torch.float32))
x = torch.randn(4, 8)
if KIND == "fsdp2":
    model.set_requires_gradient_sync(False)
    model(x).float().mean().backward()
    group = model._get_fsdp_state()._fsdp_param_group
    rows["no_sync"] = sorted({short(p.unsharded_accumulated_grad) for p in group.fsdp_params})
else:
    with model.no_sync():
        model(x).float().mean().backward()
    rows["no_sync"] = sorted({short(p.grad) for p in model.parameters() if p.grad is not None})
    rows["kept_low"] = step(wrap(net(), MixedPrecision(low, torch.float32, keep_low_precision_grads=True)))
finish(rows)
"""


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_the_traps_of_fsdp_are_real(kind: str, tmp_path: Path) -> None:
    for got in run_torchrun(f"KIND = {kind!r}\n" + COMMON + TRAPS, tmp_path):
        # param_dtype is what is computed in: weights, gradients for the optimizer and its states are float32.
        assert got["reduce_none"] == {
            "grads": ["float32"],
            "states": ["float32"],
            "params": ["float32"],
            "reduced": ["bfloat16"],  # reduce_dtype=None: as param_dtype
            "error": None,
            "out": "bfloat16",
        }
        assert (got["reduce_only"]["reduced"], got["reduce_only"]["out"]) == (["bfloat16"], "float32")
        # Weights made in 16 bits stay in them, whatever reduce_dtype says.
        low = got["low_weights"]
        assert low["params"] == low["grads"] == low["states"] == ["bfloat16"]
        assert low["reduced"] == ["float32"]
        assert got["uncast"].startswith("RuntimeError: mat1 and mat2 must have the same dtype")
        assert got["zero"] == 0  # float16 without a scaler: pytorch/pytorch#163519
        assert got["not_zero"]
        assert got["no_sync"] == (["float32"] if kind == "fsdp2" else ["bfloat16"])
        assert got["batch_norm"] == "RuntimeError: expected scalar type BFloat16 but found Float"
        if kind == "fsdp1":
            assert got["kept_low"]["grads"] == ["bfloat16"]
            assert got["kept_low"]["error"].startswith("RuntimeError: expected dtype float for `end`")

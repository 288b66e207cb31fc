# SPDX-License-Identifier: Apache-2.0
"""Lightning trains as its exported texts say, and its aliases and traps are what the exporter says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import run_program, run_torchrun
from tests.exporters.texts import exported

from floatwise.plan import LossScale, Plan, recipe

pytest.importorskip("lightning")
pytestmark = pytest.mark.slow

COMMON = """
import contextlib, io, json, logging, os, warnings, torch
from torch import nn
import lightning.pytorch as pl
from lightning.pytorch import Trainer
warnings.simplefilter("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
QUIET = dict(max_steps=4, logger=False, enable_checkpointing=False, enable_progress_bar=False,
             enable_model_summary=False, devices=1, num_sanity_val_steps=0)

def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

def short(tensor):
    return str(local(tensor).dtype).removeprefix("torch.")

def fault(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def data():
    torch.manual_seed(1)
    return torch.utils.data.DataLoader(torch.randn(8, 8), batch_size=2)

class Net(pl.LightningModule):
    def __init__(self, fused=False):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.fused, self.seen, self.scales, self.bad, self.calls = fused, {}, [], -1, 0
        self.inner.register_forward_hook(lambda m, a, out: self.seen.update(inner=short(out), weight=short(m.weight)))
    def forward(self, x):
        return self.head(self.norm(self.inner(x)))
    def configure_model(self):
        if getattr(self, "sharded", False):
            from torch.distributed.fsdp import fully_shard
            fully_shard(self.inner, mesh=self.device_mesh["data_parallel"])
            fully_shard(self, mesh=self.device_mesh["data_parallel"])
            self.sharded = False
    def training_step(self, batch, index):
        out = self(batch)
        self.seen.update(out=short(out))
        loss = out.float().pow(2).mean()
        self.calls += 1
        # One process alone overflows in the third step; all must skip it.
        last = self.global_rank == self.trainer.world_size - 1
        return loss * float("inf") if last and self.calls - 1 == self.bad else loss
    def on_before_optimizer_step(self, optimizer):
        self.seen.update(grads=sorted({short(p.grad) for p in self.parameters()}))
    def on_train_batch_start(self, batch, index):
        self.before = [local(p).detach().clone() for p in self.parameters()]
    def on_train_batch_end(self, *args):
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        moved = any(not torch.equal(a, local(b)) for a, b in zip(self.before, self.parameters()))
        self.scales.append([scaler.get_scale() if scaler else None, moved])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, fused=self.fused)

def states_of(optimizer):
    return sorted({short(v) for s in optimizer.state.values() for k, v in s.items() if k != "step"})

def with_trainer(text, sharded=False, **others):
    scope = {}
    exec(text, scope)
    model = Net()
    model.sharded = sharded
    trainer = scope["make_trainer"](**{**QUIET, **others})
    model.bad = 2 if getattr(trainer.precision_plugin, "scaler", None) else -1
    trainer.fit(model, data())
    return {**model.seen, "scales": model.scales, "states": states_of(trainer.optimizers[0]),
            "params": sorted({short(p) for p in model.parameters()}),
            "shards": sorted({tuple(local(p).shape) for p in model.inner.parameters()})}

def with_fabric(text, **others):
    scope = {}
    exec(text, scope)
    fabric = scope["make_fabric"](**{"devices": 1, **others})
    fabric.launch()
    seen, scales = {}, []
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    net[0].register_forward_hook(lambda m, a, out: seen.update(inner=short(out), weight=short(m.weight)))
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    scaler = getattr(fabric._precision, "scaler", None)
    for step in range(4):
        out = model(torch.randn(2, 8))
        loss = out.float().pow(2).mean()
        fabric.backward(loss * float("inf") if scaler and step == 2 else loss)
        seen.update(out=short(out), grads=sorted({short(p.grad) for p in model.parameters()}))
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
        scales.append([scaler.get_scale() if scaler else None, moved])
    return {**seen, "scales": scales, "states": states_of(optimizer.optimizer),
            "params": sorted({short(p) for p in model.parameters()})}
"""

TEXTS = 'texts = json.load(open("exported.json"))\n'
SCALED = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=64.0, floor=32.0))


def texts_for(folder: Path, strategy: str, *kinds: str) -> None:
    """Writes the texts of three plans for each of Lightning's two, for the CPU."""
    rows = {
        f"{kind} {name}": exported(
            plan, "lightning", device="cpu", strategy=strategy, scaler=scaler, **{"class": kind}
        ).text
        for kind in kinds
        for name, plan, scaler in (
            ("float32", recipe("fp32"), "torch"),
            ("bfloat16", recipe("bf16-mixed"), "torch"),
            ("float16", SCALED, "torch"),
            ("float16 ours", SCALED, "floatwise"),
        )
    }
    # Of itself it is tensor parallel within a node; FSDP2 is its data parallelism.
    sharding = "ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)"
    rows = {name: text.replace("ModelParallelStrategy()", sharding) for name, text in rows.items()}
    (folder / "exported.json").write_text(json.dumps(rows), encoding="utf-8")


def check(rows: dict[str, dict[str, Any]]) -> None:
    """Asserts the formats and the loss scale of each run."""
    for name, got in rows.items():
        kind, low = name.split()[:2]
        assert (got["inner"], got["weight"]) == (low, "float32"), name
        assert got["out"] == ("float32" if kind == "fabric" else low), name
        assert got["params"] == got["grads"] == got["states"] == ["float32"], name
        scales = [64.0, 64.0, 32.0, 32.0] if low == "float16" else [None] * 4
        moved = [True, True, low != "float16", True]
        assert got["scales"] == [list(row) for row in zip(scales, moved, strict=True)], name


def test_trainer_and_fabric_train_as_their_texts_say(tmp_path: Path) -> None:
    texts_for(tmp_path, "auto", "trainer", "fabric")
    program = (
        COMMON
        + TEXTS
        + """
runs = {"trainer": with_trainer, "fabric": with_fabric}
print(json.dumps({name: runs[name.split()[0]](text) for name, text in texts.items()}))
"""
    )
    check(run_program(program, tmp_path))


@pytest.mark.parametrize("strategy", ["ddp", "model_parallel"])
def test_two_processes_train_as_the_texts_say(strategy: str, tmp_path: Path) -> None:
    texts_for(tmp_path, strategy, "trainer")
    program = (
        COMMON
        + TEXTS
        + f"""
sharded = {strategy == "model_parallel"}
"""
        + """
rows = {name: with_trainer(text, sharded, devices=2) for name, text in texts.items()}
json.dump(rows, open("result." + os.environ["RANK"], "w"))
"""
    )
    for rank in run_torchrun(program, tmp_path):
        check(rank)
        shards = [[4], [4, 8]] if strategy == "model_parallel" else [[8], [8, 8]]
        assert all(got["shards"] == shards for got in rank.values())


TRAPS = """
from lightning.fabric import Fabric
from lightning.fabric.connector import _convert_precision_to_unified_args
from lightning.fabric.plugins import FSDPPrecision as FabricFSDP
from lightning.fabric.strategies.deepspeed import _format_precision_config
from lightning.pytorch.plugins import FSDPPrecision, MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
rows = {"aliases": [], "cpu": []}
for value in (16, "16", "bf16", 32, "32", 64, "64"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        full = _convert_precision_to_unified_args(value)
    rows["aliases"].append([value, full, len(caught)])
for make in (Trainer, Fabric):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make(accelerator="cpu", precision="16-mixed", devices=1)
    plugin = made.precision_plugin if make is Trainer else made._precision
    rows["cpu"].append([plugin.precision, plugin.scaler is None, any("16-mixed" in str(w.message) for w in caught)])
plugin = MixedPrecision("bf16-mixed", "cpu")
both = dict(accelerator="cpu", precision="bf16-mixed", plugins=plugin)
rows["both"] = [fault(lambda: make(**both)) for make in (Trainer, Fabric)]
rows["misspelt"] = fault(lambda: Trainer(accelerator="cpu", precision="bf16_mixed"))
rows["fsdp_cpu"] = fault(lambda: Trainer(accelerator="cpu", strategy="fsdp", precision="bf16-mixed"))
sharded = dict(accelerator="cpu", strategy=ModelParallelStrategy(), precision="16-mixed")
rows["model_parallel"] = fault(lambda: Trainer(**sharded))
scaler = ShardedGradScaler(device="cpu")
rows["fsdp_scaler"] = [fault(lambda: made("16-mixed", scaler=scaler)) for made in (FSDPPrecision, FabricFSDP)]
late = FSDPPrecision("16-mixed")
late.scaler = scaler
rows["late"] = late.scaler.scale(torch.ones(())).item() == late.state_dict()["scale"]
policy = FSDPPrecision("bf16-mixed").mixed_precision_config
rows["fsdp_formats"] = [str(d) for d in (policy.param_dtype, policy.reduce_dtype, policy.buffer_dtype)]
rows["bf16_scaler"] = fault(lambda: MixedPrecision("bf16-mixed", "cpu", torch.amp.GradScaler("cpu")))
rows["deepspeed"] = {}
for precision in ("16-mixed", "16-true", "bf16-mixed", "bf16-true"):
    config = {}
    _format_precision_config(config, precision, 0, 1000, 1, 16, 2)
    rows["deepspeed"][precision] = config

def clip(precision, fused):
    trainer = Trainer(accelerator="cpu", precision=precision, gradient_clip_val=1.0, **QUIET)
    return fault(lambda: trainer.fit(Net(fused), data()))
rows["clip"] = [clip("bf16-mixed", True), clip("bf16-mixed", False), clip("32-true", True)]

def true(precision):
    model = Net()
    trainer = Trainer(accelerator="cpu", precision=precision, **QUIET)
    trainer.fit(model, data())
    finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    return [model.seen["inner"], model.seen["grads"], states_of(trainer.optimizers[0]), finite]
rows["true"] = [true("bf16-true"), true("16-true")]
print(json.dumps(rows))
"""


def test_the_aliases_and_traps_of_lightning_are_real(tmp_path: Path) -> None:
    got = run_program(COMMON + TRAPS, tmp_path)
    assert got["aliases"] == [
        [16, "16-mixed", 1],
        ["16", "16-mixed", 1],
        ["bf16", "bf16-mixed", 1],
        *([value, f"{value}-true", 0] for value in (32, "32", 64, "64")),
    ]
    assert got["cpu"] == [["bf16-mixed", True, True]] * 2
    assert all(error.startswith("ValueError: Received both `precision=bf16-mixed`") for error in got["both"])
    assert got["misspelt"].startswith("ValueError: Precision 'bf16_mixed' is invalid")
    assert got["fsdp_cpu"].startswith("ValueError: The strategy `fsdp` requires a GPU accelerator")
    assert got["model_parallel"].startswith("ValueError: The `ModelParallelStrategy` does not support")
    assert all("does not use a scaler" in error for error in got["fsdp_scaler"])
    assert got["late"]  # the attribute works where the argument does not
    assert got["fsdp_formats"] == ["torch.bfloat16"] * 3
    assert "does not use a scaler" in got["bf16_scaler"]
    scale = {
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    assert got["deepspeed"]["16-mixed"] == got["deepspeed"]["16-true"] == {"fp16": {"enabled": True, **scale}}
    assert got["deepspeed"]["bf16-mixed"] == got["deepspeed"]["bf16-true"] == {"bf16": {"enabled": True}}
    assert got["clip"][0].startswith("RuntimeError: The current optimizer, AdamW, does not allow for gradient clipping")
    assert got["clip"][1:] == [None, None]
    assert got["true"][0] == ["bfloat16", ["bfloat16"], ["bfloat16"], True]
    assert got["true"][1] == ["float16", ["float16"], ["float16"], False]  # Adam's eps is 0 in float16


CLI = """
import sys
from lightning.pytorch.cli import LightningCLI
rows = []
for name in sys.argv[1:]:
    cli = LightningCLI(Net, run=False, args=["--config", name], save_config_callback=None)
    plugin = cli.trainer.precision_plugin
    scaler = getattr(plugin, "scaler", None)
    kept = [scaler.get_scale(), scaler.get_growth_interval(), getattr(scaler, "floor", None)] if scaler else None
    rows.append([plugin.precision, type(scaler).__name__, kept, type(cli.trainer.strategy).__name__])
print(json.dumps(rows))
"""


def test_the_yaml_is_what_lightningcli_reads(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    scale = LossScale(initial_scale=64.0, floor=32.0, growth_interval=100, window_log2=(2, 9))
    low = recipe("fp16-mixed", loss_scale=scale)
    cases: tuple[tuple[Plan, dict[str, str]], ...] = (
        (recipe("bf16-mixed"), {}),
        (low, {}),
        (low, {"scaler": "floatwise"}),
        (recipe("bf16-mixed"), {"strategy": "model_parallel"}),
    )
    for number, (plan, options) in enumerate(cases):
        text = exported(plan, "lightning", form="yaml", device="cpu", **options).text
        (tmp_path / f"{number}.yaml").write_text(text, encoding="utf-8")
    assert run_program(COMMON + CLI, tmp_path, *(f"{number}.yaml" for number in range(len(cases)))) == [
        ["bf16-mixed", "NoneType", None, "SingleDeviceStrategy"],
        ["16-mixed", "GradScaler", [64.0, 100, None], "SingleDeviceStrategy"],
        ["16-mixed", "LossScaler", [64.0, 100, 32.0], "SingleDeviceStrategy"],
        ["bf16-mixed", "NoneType", None, "ModelParallelStrategy"],
    ]

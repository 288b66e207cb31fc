# SPDX-License-Identifier: Apache-2.0
"""The module written for plain PyTorch trains a model as the plan says, and the traps it avoids are real."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exporters.running import run_program
from tests.exporters.texts import exported

from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, recipe

pytestmark = pytest.mark.slow

MODEL = """
import copy, json, torch
from torch import nn
from precision import *

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm1, self.down = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
    def forward(self, x):
        return self.down(self.norm1(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(8, 2)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def short(tensor):
    return str(tensor.dtype).removeprefix("torch.")

def watch(model):
    seen = {}
    for path, module in model.named_modules():
        module.register_forward_hook(lambda m, a, out, path=path: seen.__setitem__(path, (short(a[0]), short(out))))
    return seen
"""

TRAIN = (
    MODEL
    + """
torch.manual_seed(0)
model = prepare(Net(), "cpu")
seen = watch(model)
optimizer = torch.optim.AdamW(model.parameters())
scaler = make_scaler("cpu")
before = [p.detach().clone() for p in model.parameters()]
for step in range(3):
    for half in range(2):
        with autocast("cpu"):
            loss = model(torch.randn(4, 8)).float().pow(2).mean() / 2
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    grads = {short(p.grad) for p in model.parameters()}
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
states = {short(v) for s in optimizer.state.values() for k, v in s.items() if k != "step"}
seen = dict(seen)  # without what the copy's hooks note
copied = copy.deepcopy(model)
with torch.no_grad():
    copied.blocks[0].norm1.weight.zero_()
    copied.blocks[0].norm1.bias.zero_()
    other = copied(torch.ones(1, 8))
again = copied.blocks[0].norm1(torch.ones(1, 8)).abs().sum().item()
print(json.dumps({"seen": seen, "grads": sorted(grads), "states": sorted(states), "norm": float(norm),
  "params": sorted({short(p) for p in model.parameters()}),
  "moved": all(bool((a != b).any()) for a, b in zip(before, model.parameters())),
  "enabled": scaler.is_enabled(), "scale": scaler.get_scale(), "copied": again,
  "matmul": torch.get_float32_matmul_precision()}))
"""
)


def plan_with_islands(recipe_name: str, **values: object) -> Plan:
    """Returns a plan whose first norm, head and second block but its last layer differ from the default."""
    low = recipe(recipe_name).compute_dtype
    return recipe(
        recipe_name,
        modules=(
            ModulePolicy(module="blocks.*.norm[12]", policy=Policy(compute_dtype="float32", output_dtype=low)),
            ModulePolicy(module="blocks.1", policy=Policy(compute_dtype="float32")),
            ModulePolicy(module="blocks.1.down", policy=Policy(compute_dtype=low)),
        ),
        **values,
    )


def run(plan: Plan, program: str, folder: Path) -> dict[str, object]:
    """Writes the module of `plan` beside a program and runs it."""
    (folder / "precision.py").write_text(exported(plan, "torch-amp", device="cpu").text, encoding="utf-8")
    result: dict[str, object] = run_program(program, folder)
    return result


@pytest.mark.parametrize(("name", "low", "scale"), [("bf16-mixed", "bfloat16", 1.0), ("fp16-mixed", "float16", 1024.0)])
def test_formats_are_those_of_the_plan(name: str, low: str, scale: float, tmp_path: Path) -> None:
    values = {"loss_scale": LossScale(initial_scale=1024.0)} if name == "fp16-mixed" else {}
    got = run(plan_with_islands(name, float32_matmul="tf32", **values), TRAIN, tmp_path)
    seen = {path: tuple(formats) for path, formats in got["seen"].items()}  # type: ignore[attr-defined]
    assert seen["blocks.0.up"] == ("float32", low)
    assert seen["blocks.0.norm1"] == (low, low)  # hooks see what comes in and goes out; within it is float32
    assert seen["blocks.0.down"] == (low, low)
    assert seen["blocks.1"] == (low, "float32")
    assert seen["blocks.1.up"] == ("float32", "float32")
    assert seen["blocks.1.norm1"] == ("float32", "float32")
    assert seen["blocks.1.down"] == ("float32", "float32")
    assert seen["head"] == ("float32", low)
    assert seen[""] == ("float32", "float32")  # output_dtype
    assert got["params"] == got["grads"] == got["states"] == ["float32"]
    assert got["moved"]
    assert (got["enabled"], got["scale"]) == (name == "fp16-mixed", scale)
    assert got["matmul"] == "high"
    assert got["copied"] == 0.0  # a copy of the model runs its own islands, not the original's


INSIDE = (
    MODEL
    + """
model = prepare(Net(), "cpu")
inside = {}
def note(path, call):
    def wrapped(x):
        inside[path] = (short(x), short(call(x)), torch.is_autocast_enabled("cpu"))
        return call(x)
    return wrapped
for path, module in model.named_modules():
    if isinstance(module, (nn.Linear, nn.LayerNorm)):
        if hasattr(module.forward, "forward"):
            module.forward.forward = note(path, module.forward.forward)
        else:
            module.forward = note(path, module.forward)
with autocast("cpu"):
    model(torch.randn(2, 8))
lowered = dict(inside)
inside.clear()
out = model(torch.randn(2, 8))
plain = dict(inside)
compiled = torch.compile(model, backend="eager")
with autocast("cpu"):
    x = torch.randn(2, 8)
    same = torch.equal(compiled(x), model(x))
print(json.dumps({"lowered": lowered, "plain": plain, "out": short(out), "same": same}))
"""
)


def test_islands_compute_in_float32_and_plain_calls_are_untouched(tmp_path: Path) -> None:
    got = run(plan_with_islands("bf16-mixed"), INSIDE, tmp_path)
    assert got["lowered"] == {
        "blocks.0.up": ["float32", "bfloat16", True],
        "blocks.0.norm1": ["float32", "float32", False],
        "blocks.0.down": ["bfloat16", "bfloat16", True],
        "blocks.1.up": ["float32", "float32", False],
        "blocks.1.norm1": ["float32", "float32", False],
        "blocks.1.down": ["float32", "bfloat16", True],
        "head": ["float32", "bfloat16", True],
    }
    plain = got["plain"]
    assert isinstance(plain, dict)
    # Evaluated outside autocast only the layer that the plan lowers inside an island computes lower.
    assert {path: row[1] for path, row in plain.items() if path != "blocks.1.down"} == {
        path: "float32" for path in plain if path != "blocks.1.down"
    }
    assert got["out"] == "float32"
    assert got["same"]


SCALES = (
    MODEL
    + """
def trace(scaler, overflows):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scales = []
    for bad in overflows:
        scaler.scale(weight.sum() * (float("inf") if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales, bool(torch.isfinite(weight).all())
numbers = {k: LOSS_SCALE[k] for k in ("growth_factor", "backoff_factor", "growth_interval")}
plain = torch.amp.GradScaler("cpu", init_scale=LOSS_SCALE["initial_scale"], **numbers)
rows = {"module": trace(make_scaler("cpu"), [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0]),
        "plain": trace(plain, [1] * 170)[0][-1]}
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
plain.scale(weight.sum()).backward()
plain.step(optimizer)
rows["nan"] = bool(torch.isnan(weight).all())
state = make_scaler("cpu").state_dict()
rows["state"] = state["scale"]
print(json.dumps(rows))
"""
)


@pytest.mark.parametrize(
    ("scale", "trace"),
    [
        (
            LossScale(initial_scale=8.0, floor=2.0, ceiling=16.0, growth_interval=2),
            [4, 2, 2, 2, 2, 2, 4, 4, 8, 8, 16, 8, 8],
        ),
        (
            LossScale(initial_scale=8.0, floor=2.0, ceiling=16.0, growth_interval=2, hysteresis=2),
            [8, 4, 2, 2, 2, 2, 4, 4, 8, 8, 16, 16, 16],
        ),
        (LossScale(mode="static", initial_scale=8.0, growth_interval=2), [8] * 13),
    ],
    ids=["floor and ceiling", "hysteresis", "static"],
)
def test_the_scale_keeps_the_limits_that_gradscaler_lacks(scale: LossScale, trace: list[float], tmp_path: Path) -> None:
    got = run(recipe("fp16-mixed", loss_scale=scale), SCALES, tmp_path)
    assert got["module"] == [trace, True]
    assert got["plain"] == 0.0  # the trap: without a floor it is gone after overflows in a row,
    assert got["nan"]  # and the next healthy step writes NaN
    assert got["state"] == 8.0


TRAPS = """
import json, warnings, torch
rows = {}
def fault(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def unscale_half():
    model = torch.nn.Linear(4, 2).half()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(1, 4).half()).sum()).backward()
    scaler.step(optimizer)
rows["half"] = fault(unscale_half)
rows["defaults"] = [str(torch.get_autocast_dtype(d)) for d in ("cuda", "cpu")]
with torch.autocast("cpu"):
    rows["cpu"] = str(torch.nn.Linear(4, 2)(torch.ones(1, 4)).dtype)
old = {"autocast": torch.cuda.amp.autocast, "GradScaler": torch.cuda.amp.GradScaler}
for name, make in old.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    rows[name] = sorted({w.category.__name__ for w in caught if "deprecated" in str(w.message)})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with torch.autocast("cpu", dtype=torch.float32):
        rows["float32"] = [torch.is_autocast_enabled("cpu"), len(caught)]
def smallest(scale):
    weight = torch.nn.Parameter(torch.ones(1, 1))
    with torch.autocast("cpu", dtype=torch.float16):
        out = torch.nn.functional.linear(torch.ones(1, 1), weight)
    (out.float() * 2.0**-26 * scale).sum().backward()
    return weight.grad.item() / scale
rows["unscaled"], rows["scaled"] = smallest(1.0), smallest(2.0**10)
print(json.dumps(rows))
"""


def test_the_faults_that_are_found_in_scripts_are_real(tmp_path: Path) -> None:
    got = run_program(TRAPS, tmp_path)
    assert got["half"] == "ValueError: Attempting to unscale FP16 gradients."
    assert got["defaults"] == ["torch.float16", "torch.bfloat16"]
    assert got["cpu"] == "torch.bfloat16"
    assert got["autocast"] == got["GradScaler"] == ["FutureWarning"]
    assert got["float32"] == [False, 1]
    assert got["unscaled"] == 0.0
    assert got["scaled"] == 2.0**-26

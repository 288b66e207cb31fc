# SPDX-License-Identifier: Apache-2.0
"""Accelerate, for real: three steps from what was exported, told by tensors; and its traps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import Failed, run_program, run_torchrun

from floatwise.exporters import export_plan, get_system
from floatwise.exporters.export import Exported
from floatwise.plan import LossScale, Reductions, recipe

pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

TRAIN = """
import json, os, sys, warnings
from collections import Counter
warnings.simplefilter("ignore")
import torch


def dtype(tensor):
    return str(tensor.dtype).removeprefix("torch.")


class Model(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        self.register_buffer("buffer", torch.ones(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.layers[0](x)


def train(accelerator, width=16):
    model = Model(width)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    seen, losses = Counter(), []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda m, i, o: seen.update([dtype(o)]))
    for _ in range(3):
        torch.manual_seed(1)
        out = model(torch.randn(8, width))
        loss = out.float().square().mean()
        accelerator.backward(loss)
        gradients = sorted({dtype(p.grad) for p in model.parameters()})
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    states = {dtype(v) for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)}
    return {
        "linear": sorted(seen), "out": dtype(out), "weights": sorted({dtype(p) for p in model.parameters()}),
        "gradients": gradients, "states": sorted(states), "learns": losses[-1] < losses[0],
        "scaler": str(accelerator.scaler), "amp": accelerator.native_amp,
        "float8": sum(type(m).__name__ == "Float8Linear" for m in model.modules()),
    }


def reset():
    from accelerate.state import AcceleratorState, GradientState
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
"""

SOURCES = (
    TRAIN
    + """
found = {}
for name, (source, width) in json.loads(sys.argv[1]).items():
    reset()
    values = {}
    exec(source, values)
    found[name] = train(values["ACCELERATOR"], width)
    handler = values["ACCELERATOR"].scaler_handler
    found[name]["scale"] = handler and handler.init_scale
print(json.dumps(found))
"""
)

LAUNCHED = (
    TRAIN
    + """
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
accelerator = Accelerator()
if os.environ.get("ACCELERATE_USE_FSDP") == "true":
    plugin = FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision(accelerator.mixed_precision)
    policy = plugin.mixed_precision_policy
    found = {"version": plugin.fsdp_version, "policy": [str(policy.param_dtype), str(policy.reduce_dtype)]}
else:
    found = train(accelerator, 32)
print("FOUND " + json.dumps({**found, "mode": accelerator.mixed_precision}))
"""
)


def export(plan: Any, form: str = "python", **options: Any) -> Exported:
    return export_plan(plan, get_system("accelerate"), form=form, options=options)


def launch(text: str, folder: Path, *arguments: str) -> Any:
    """Runs the program by `accelerate launch` from a configuration file and returns what it found."""
    (folder / "program.py").write_text(LAUNCHED, encoding="utf-8")
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "config.yaml", *arguments, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if not lines:
        raise Failed(done.stderr[-3000:])
    return json.loads(lines[0].removeprefix("FOUND "))


def test_exported_source_trains_in_the_formats_of_the_plan(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    sources = {
        "fp32": (export(recipe("fp32")).text, 16),
        "bf16": (export(recipe("bf16-mixed")).text, 16),
        "fp16": (export(recipe("fp16-mixed", loss_scale=LossScale(initial_scale=256.0))).text, 16),
        "fp8": (export(recipe("fp8-tensorwise")).text, 32),
        "fp8-rowwise": (export(recipe("fp8-rowwise")).text, 32),
        "fp8-small": (export(recipe("fp8-tensorwise")).text, 8),
    }
    found = run_program(SOURCES, tmp_path, json.dumps(sources), ACCELERATE_USE_CPU="true")
    for name, row in found.items():
        # The weights stay in float32 and are the master weights, whatever is computed in; outputs are converted back.
        assert row["weights"] == row["gradients"] == row["states"] == ["float32"], name
        assert row["out"] == "float32", name
        assert row["learns"], name
    assert found["fp32"]["linear"] == ["float32"]
    assert found["bf16"]["linear"] == ["bfloat16"]
    assert found["bf16"]["amp"] is True
    # The trap that the exporter remarks on: fp16 on a CPU is float32, with no scaler and no message.
    assert (found["fp16"]["linear"], found["fp16"]["scaler"], found["fp16"]["amp"]) == (["float32"], "None", False)
    assert found["fp16"]["scale"] == 256.0
    # torchao takes neither the first nor the last of three layers, and none with 8 columns.
    assert [found[name]["float8"] for name in ("fp8", "fp8-rowwise", "fp8-small")] == [1, 1, 0]
    assert found["fp8-small"]["linear"] == ["bfloat16"]


def test_the_exported_file_is_what_accelerate_launch_reads(tmp_path: Path) -> None:
    text = export(recipe("bf16-mixed"), "yaml").text
    # fp8_config without fp8 is passed over, as the reader finds.
    row = launch(text + "use_cpu: true\nfp8_config:\n  backend: AO\n", tmp_path)
    assert (row["mode"], row["linear"], row["weights"], row["float8"]) == ("bf16", ["bfloat16"], ["float32"], 0)


def test_the_exported_file_of_float8_is_read_with_its_backend(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    row = launch(export(recipe("fp8-tensorwise"), "yaml").text + "use_cpu: true\n", tmp_path)
    assert (row["mode"], row["float8"]) == ("fp8", 1)


def test_the_exported_file_of_fsdp2_makes_a_policy_of_16_bits_throughout(tmp_path: Path) -> None:
    text = export(recipe("bf16-mixed"), "yaml", fsdp=2).text
    row = launch(text, tmp_path, "--num_processes", "1")
    assert row == {"mode": "bf16", "version": 2, "policy": ["torch.bfloat16", "torch.bfloat16"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("distributed_type: 'NO'\nmixed_precision: no\n", "AttributeError: 'bool' object has no attribute 'lower'"),
        ("distributed_type: NO\nmixed_precision: bf16\n", "You need to manually pass in `--num_processes`"),
        ("distributed_type: 'NO'\nmixed_precison: bf16\n", "had unknown keys (['mixed_precison'])"),
        ("distributed_type: 'NO'\nmixed_precision: bfloat16\n", "Unknown mixed_precision mode: bfloat16"),
    ],
)
def test_files_that_the_reader_refuses_fail_in_accelerate(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Failed) as error:
        launch(text + "use_cpu: true\n", tmp_path)
    assert message in str(error.value)


TRAPS = (
    TRAIN
    + """
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs, FullyShardedDataParallelPlugin


def error(make):
    try:
        make()
    except Exception as caught:
        return f"{type(caught).__name__}: {caught}"


reset()
row = train(Accelerator(mixed_precision="bf16", kwargs_handlers=[AutocastKwargs(enabled=False)]))
half = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
print(json.dumps({
    "autocast off": row["linear"],
    "two of three": error(lambda: FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy=half)),
    "lower case": error(lambda: (os.environ.update(ACCELERATE_FP8_BACKEND="ao"), reset(),
                                 Accelerator(mixed_precision="fp8"))),
}))
"""
)


def test_traps_of_the_plugins_are_as_the_reader_says(tmp_path: Path) -> None:
    found = run_program(TRAPS, tmp_path, ACCELERATE_USE_CPU="true")
    assert found["autocast off"] == ["float32"]
    assert found["two of three"].startswith("ValueError: Invalid mixed precision policy")
    assert found["lower case"] == "ValueError: 'ao' is not a valid FP8BackendType"


# Accelerate shards on accelerators only; its own preparation is run here on two CPU processes by telling its state so.
SHARDED = (
    TRAIN
    + """
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, GradientAccumulationPlugin

reduced = set()


def watch(name):
    original = getattr(dist, name)

    def watched(*arguments, **named):
        for value in (*arguments, *named.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 64:
                reduced.add(dtype(value))
        return original(*arguments, **named)

    setattr(dist, name, watched)


for name in dir(dist):
    if name.lstrip("_").startswith(("reduce_scatter", "all_reduce")) and callable(getattr(dist, name)):
        watch(name)

class Recorded(Accelerator):
    def __init__(self, mixed_precision, fsdp_plugin=None, kwargs_handlers=None):
        batches = GradientAccumulationPlugin(num_steps=2, sync_each_batch=sync)
        super().__init__(mixed_precision=mixed_precision, kwargs_handlers=kwargs_handlers,
                         gradient_accumulation_plugin=batches)
        if mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(mixed_precision)
        for state in (AcceleratorState._shared_state, PartialState._shared_state):
            state.update(distributed_type=DistributedType.FSDP, device=torch.device("cpu"))
        AcceleratorState._shared_state["fsdp_plugin"] = fsdp_plugin


def gradients_of(model):
    for module in model.modules():
        group = hasattr(module, "_get_fsdp_state") and module._get_fsdp_state()._fsdp_param_group
        for p in group.fsdp_params if group else ():
            yield from (p.unsharded_accumulated_grad, p._unsharded_param.grad, p.sharded_param.grad)
    yield from (p.grad for p in model.parameters())


def shard(source):
    reset()
    made = {}
    exec(source.replace("import Accelerator\\n", "import Accelerator as _\\n"), {"Accelerator": Recorded}, made)
    accelerator = made["ACCELERATOR"]
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-2))
    seen, buffers = set(), set()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda m, i, o: seen.add(dtype(o)))
            layer.register_forward_hook(lambda m, i, o: buffers.update(dtype(b) for b in model.buffers()))
    for step in range(2):
        with accelerator.accumulate(model):
            out = model(torch.randn(8, 16))
            accelerator.backward(out.float().square().mean())
            if step == 0:
                reduced.clear()
                waiting = {dtype(g) for g in gradients_of(model) if g is not None}
    return {
        "linear": sorted(seen), "out": dtype(out), "buffers": sorted(buffers), "waiting": sorted(waiting),
        "weights": sorted({dtype(p) for p in model.parameters()}), "reduced": sorted(reduced),
        "gradients": sorted({dtype(p.grad) for p in model.parameters() if p.grad is not None}),
    }


rows = {}
for name, (source, sync) in json.loads(sys.argv[1]).items():
    rows[name] = shard(source)
json.dump(rows, open(f"result.{dist.get_rank()}", "w"))
"""
)

MIXED = recipe("bf16-mixed")
LOW = recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16", buffer_dtype="bfloat16"))


def test_the_exported_plugins_shard_in_the_formats_that_were_read_back(tmp_path: Path) -> None:
    exported = {
        "fsdp2": export(MIXED, fsdp=2),
        "fsdp2-low": export(LOW, fsdp=2),
        "fsdp1": export(MIXED, fsdp=1),
        "fsdp1-low": export(LOW, fsdp=1),
    }
    wanted: dict[str, Any] = {name: (one.text, False) for name, one in exported.items()}
    wanted["synced"] = (exported["fsdp2-low"].text, True)
    rows = run_torchrun(SHARDED, tmp_path, json.dumps(wanted), ACCELERATE_USE_CPU="true")[0]
    # What the exporter says of gradient accumulation: sync_each_batch sums in the shards.
    assert rows.pop("synced")["waiting"] == ["float32"]
    for name, row in rows.items():
        read = exported[name].reading.plan
        assert row["weights"] == row["gradients"] == ["float32"], name
        assert row["linear"] == [read.compute_dtype], name
        assert row["out"] == read.policy.output_dtype, name
        assert row["buffers"] == [read.reductions.buffer_dtype], name
        assert row["waiting"] == [read.reductions.accumulate_dtype], name
        assert row["reduced"] == [read.reductions.reduce_dtype], name

# SPDX-License-Identifier: Apache-2.0
"""A program that trains small models with the real DeepSpeed on the CPU and tells what tensors were seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.exporters.running import free_port, run_program, run_torchrun

__all__ = ["train", "train_in_two_processes"]

PROGRAM = '''
import json, logging, os, sys

import torch
import deepspeed
import deepspeed.comm as comm
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime import torch_autocast
from deepspeed.utils import logger

logger.setLevel(logging.ERROR)
# The shared-memory collective is compiled at the first start, which takes a minute and more; gloo does as well.
for name in list(deepspeed.ops.__compatible_ops__):
    if "shm" in name:
        deepspeed.ops.__compatible_ops__[name] = False
# Override of the host: DeepSpeed refuses fp16 on CPUs without AVX512-FP16, although torch computes it on all.
type(get_accelerator()).is_fp16_supported = lambda self: True

sent = set()


def watch(name):
    original = getattr(comm, name)

    def watched(*arguments, **named):
        for value in (*arguments, *named.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1:
                sent.add(dtype(value))
        return original(*arguments, **named)

    setattr(comm, name, watched)


def dtype(tensor):
    return str(tensor.dtype).removeprefix("torch.")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.last = torch.nn.Linear(8, 8, bias=False)
        self.register_buffer("buffer", torch.ones(3))

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.layer(x)


def start(model, config, rate, momentum):
    torch_autocast.TORCH_AUTOCAST_INITIALIZED = False  # a global that outlives its engine
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    config = {"zero_allow_untested_optimizer": True, **config}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[:2]


def masters(optimizer):
    flat = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    if flat:
        return list(flat)
    return [p for group in getattr(optimizer, "optimizer", optimizer).param_groups for p in group["params"]]


def scale(engine, optimizer):
    for owner, name in ((optimizer, "torch_autocast_gradscaler"), (engine, "torch_autocast_z0_gradscaler")):
        if getattr(owner, name, None) is not None:
            return getattr(owner, name).get_scale()
    return float(getattr(optimizer, "cur_scale", 1.0))


def steps(case):
    """Trains; the loss of each step is multiplied by its factor."""
    model = Model()
    engine, optimizer = start(model, case["config"], case.get("rate", 1e-3), 0.9)
    compute = []
    engine.module.first.register_forward_hook(lambda module, inputs, output: compute.append(dtype(output)))
    result = {"params": sorted({dtype(p) for p in model.parameters()}), "buffer": dtype(model.buffer)}
    torch.manual_seed(1)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    # bfloat16 weights take bfloat16 inputs; for float16 the exported auto_cast is asked to do it.
    cast = torch.bfloat16 if result["params"] == ["bfloat16"] else torch.float32
    if result["params"] == ["float16"] and not case["config"]["fp16"].get("auto_cast"):
        cast = torch.float16
    scales, error, before = [scale(engine, optimizer)], "", [m.detach().clone() for m in masters(optimizer)]
    sent.clear()
    for factor in case["factors"]:
        output = engine(x.to(cast))
        loss = torch.nn.functional.mse_loss(output.float(), y) * float(factor)
        engine.backward(loss)
        try:
            engine.step()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            break
        scales.append(scale(engine, optimizer))
    inner = getattr(optimizer, "optimizer", optimizer)
    update = sum(((m.detach().float() - b.float()) ** 2).sum().item() for m, b in zip(masters(optimizer), before))
    result |= {
        "compute": sorted(set(compute)),
        "output": dtype(output),
        "sent": sorted(sent),
        "masters": sorted({dtype(m) for m in before}),
        "states": sorted({dtype(v) for s in inner.state.values() for v in s.values() if torch.is_tensor(v)}),
        "scales": scales,
        "skipped": engine.skipped_steps,
        "finite": all(bool(torch.isfinite(m).all()) for m in masters(optimizer)),
        "update": update**0.5,
        "error": error,
    }
    engine.destroy()
    return result


def sums(case):
    """Sums a gradient of 1 and three so small that 16 bits lose each of them; returns how many arrived."""
    model = Sum()
    small = 2.0**-12 if "fp16" in case["config"] or case.get("float16") else 2.0**-9
    config = {**case["config"], "gradient_accumulation_steps": 4, "gradient_clipping": 0.0}
    engine, optimizer = start(model, config, 4.0, 0.0)
    cast = next(model.parameters()).dtype
    for value in (1.0, small, small, small):
        engine.backward(engine(torch.full((1, 8), value, dtype=cast)).float().sum())
        engine.step()
    update = -masters(optimizer)[0].detach().float().flatten()[0].item()
    engine.destroy()
    return (update - 1) / small


def parse(case):
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig(case["config"])
    return "accepted"


deepspeed.init_distributed("gloo", verbose=False)
for name in ("all_reduce", "reduce", "reduce_scatter_fn", "all_to_all_single"):
    watch(name)
results = []
for case in json.load(open(sys.argv[1])):
    try:
        results.append({"steps": steps, "sums": sums, "parse": parse}[case["do"]](case))
    except (Exception, AssertionError) as raised:
        results.append(f"{type(raised).__name__}: {' '.join(str(raised).split())}")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
if os.environ["WORLD_SIZE"] == "1":
    print(json.dumps(results), flush=True)
elif os.environ["RANK"] == "0":
    with open("result.0", "w") as file:
        json.dump(results, file)
os._exit(0)  # gloo's threads abort now and then while the interpreter ends
'''


def train(cases: list[dict[str, Any]], folder: Path) -> list[Any]:
    """Runs cases one after the other in one process; an error is given as its text."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}
    port = str(free_port())
    results: list[Any] = run_program(PROGRAM, folder, _written(cases, folder), MASTER_PORT=port, **place)
    return results


def train_in_two_processes(cases: list[dict[str, Any]], folder: Path) -> list[Any]:
    """Runs cases in two processes of one group; returns what the first saw."""
    results: list[Any] = run_torchrun(PROGRAM, folder, _written(cases, folder), DS_ACCELERATOR="cpu")[0]
    return results


def _written(cases: list[dict[str, Any]], folder: Path) -> str:
    path = folder / "cases.json"
    path.write_text(json.dumps(cases), encoding="utf-8")
    return str(path)

# SPDX-License-Identifier: Apache-2.0
"""What each of two ranks does for `test_fsdp2.py`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.torch.distributed.training import batches, ranks_part, start, train, whole_weights
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import (
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from floatwise.errors import FloatwiseError
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, Reductions, recipe
from floatwise.torch import Precision, autocast_region, prepare
from floatwise.torch.distributed.convert import convert_parameters
from floatwise.torch.distributed.fsdp2 import ShardedFormats

#: Policies that a model may have been sharded with before the plan came.
OWN: dict[str, MixedPrecisionPolicy] = {
    "none": MixedPrecisionPolicy(),
    "bfloat16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "bfloat16 sums and outputs": MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.bfloat16),
}
_ISLAND = ModulePolicy(module="blocks.1.up", policy=Policy(compute_dtype="float32"))
PLANS: dict[str, Plan] = {
    "fp32": recipe("fp32"),
    "bf16-mixed": recipe("bf16-mixed"),
    "fp16-mixed": recipe("fp16-mixed", loss_scale=LossScale(initial_scale=2.0**10)),
    "an island": recipe("bf16-mixed", modules=(_ISLAND,)),
    "bfloat16 sums": recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16")),
}
MASTERS: dict[str, Plan] = {
    "bf16-master": recipe("bf16-master"),
    "fp16-master": recipe("fp16-master", loss_scale=LossScale(initial_scale=2.0**10)),
}


def run() -> dict[str, Any]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    return {
        "training": {name: _training(plan) for name, plan in PLANS.items()},
        "own policy alone": _own_policy_alone(),
        "gathered": _gathered(),
        "accumulated": _accumulated(),
        "overflow": _overflow(),
        "when": _when(),
        "restored": _restored(),
        "outside": _outside(),
        "gathered optimizer": _gathered_optimizer(),
        "shapes": _shapes(),
        "converted": _converted(),
        "mixed group": _mixed_group(),
        "checkpoint": _checkpoint(),
        "masters": {name: _masters(plan) for name, plan in MASTERS.items()},
        "fsdp1": _fsdp1(),
    }


def sharded(policy: MixedPrecisionPolicy | None = None, model: nn.Module | None = None) -> Any:
    """Returns the model, each block a group of its own and the rest another."""
    model = model or start()
    settings: dict[str, Any] = {} if policy is None else {"mp_policy": policy}
    for block in model.get_submodule("blocks").children():
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def _mine(count: int) -> list[list[Tensor]]:
    return [[ranks_part(batch, dist.get_rank(), 2)] for batch in batches(count)]


def _training(plan: Plan) -> dict[str, dict[str, Tensor]]:
    """Trains a model that is sharded with each policy, one under DDP, and one alone on all the data."""
    models = {name: sharded(policy) for name, policy in OWN.items()} | {"ddp": DistributedDataParallel(start())}
    for model in models.values():
        train(model, plan, _mine(4))
    alone = start()
    train(alone, plan, [[ranks_part(b, 0, 2), ranks_part(b, 1, 2)] for b in batches(4)])
    return {name: whole_weights(model) for name, model in models.items()} | {"alone": whole_weights(alone)}


def _own_policy_alone() -> dict[str, Tensor]:
    """Trains as people do without a plan: FSDP2's bfloat16 and no autocast."""
    model = sharded(OWN["bfloat16"])
    train(model, "fp32", [])  # leaves the policy as it was
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for (part,) in _mine(4):
        model(part).backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole_weights(model)


def _gathered() -> dict[str, dict[str, str]]:
    """Returns the dtype that each parameter had in the forward pass, by plan."""
    found: dict[str, dict[str, str]] = {}
    for name in ("bf16-mixed", "an island", "fp32"):
        model, dtypes = sharded(OWN["bfloat16"]), found.setdefault(name, {})
        for path, module in model.named_modules():
            module.register_forward_pre_hook(_note(path, dtypes))
        train(model, PLANS[name], _mine(1))
    return found


def _note(path: str, dtypes: dict[str, str]) -> Callable[[nn.Module, Any], None]:
    def note(module: nn.Module, args: Any) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            dtypes[f"{path}.{name}"] = str(parameter.dtype).removeprefix("torch.")

    return note


def _accumulated() -> dict[str, dict[str, Tensor]]:
    """Trains on micro-batches that are reduced once, under a plan that sums over ranks in bfloat16, and DDP so, too."""
    parts = [list(ranks_part(batch, dist.get_rank(), 2).chunk(4)) for batch in batches(2)]
    models = {"fsdp2": sharded(), "ddp": DistributedDataParallel(start())}
    for model in models.values():
        train(model, PLANS["bfloat16 sums"], parts)
    return {name: whole_weights(model) for name, model in models.items()}


def _overflow() -> Any:
    """Trains with a loss that is infinite in one step and on one rank only."""
    results = []
    for model in (sharded(), DistributedDataParallel(start())):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        precision = prepare(model, optimizer, PLANS["fp16-mixed"])
        infos = []
        for step, (part,) in enumerate(_mine(4)):
            with precision.forward():
                loss = model(part)
            precision.backward(loss * torch.inf if step == 1 and dist.get_rank() == 1 else loss)
            infos.append(precision.step(clip_norm=1.0))
            optimizer.zero_grad()
        precision.close()
        results.append((infos, whole_weights(model)))
    return results


def _when() -> dict[str, dict[str, Tensor]]:
    """Trains models to which the plan came before or after a first forward pass, or twice."""
    early, late, twice = sharded(), sharded(OWN["bfloat16"]), sharded()
    with torch.no_grad():
        late(batches(1)[0])
    late.reshard()
    train(twice, "bf16-mixed", [])
    for model in (early, late, twice):
        train(model, "bf16-mixed", _mine(3))
    return {"early": whole_weights(early), "late": whole_weights(late), "twice": whole_weights(twice)}


def _restored() -> tuple[float, float, Any]:
    """Returns the loss in float32 of a model before a plan and after its end, and the policy that it then has."""
    model = sharded()
    tokens = batches(1)[0]
    with torch.no_grad():
        before = model(tokens).item()
        model.reshard()
        precision = _prepared(model)
        with precision.forward():
            model(tokens)
        precision.close()
        return before, model(tokens).item(), model._get_fsdp_state()._mp_policy


def _prepared(model: nn.Module) -> Precision:
    return prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16-mixed")


def _outside() -> str:
    """Returns what is said when a model runs forward outside the plan's region."""
    model = sharded()
    precision = _prepared(model)
    try:
        model(batches(1)[0])
    except FloatwiseError as error:
        return str(error)
    finally:
        precision.close()
    return ""


def _gathered_optimizer() -> str:
    """Returns what is said of an optimizer that is made while the outermost module's weights are gathered."""
    model = sharded()
    with torch.no_grad():
        model(batches(1)[0])
    try:
        _prepared(model)
    except FloatwiseError as error:
        return str(error)
    return ""


class _Pieces(nn.Module):
    """Shapes in which FSDP2 can be used beside `forward` of one module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)) + x
        x = torch.utils.checkpoint.checkpoint(self._middle, x, use_reentrant=False)
        loss: Tensor = (self.frozen(self.second(x)).float() - 1).square().mean()
        return loss

    def _middle(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.first(x))

    def by_another_name(self, x: Tensor) -> Tensor:
        return self.forward(x)


def _shapes() -> dict[str, dict[str, Tensor]]:
    """Trains convolutions, a group of two modules, recomputed activations, frozen weights, and another method."""
    models: dict[str, Any] = {"ddp": DistributedDataParallel(_Pieces()), "fsdp2": _Pieces()}
    fully_shard([models["fsdp2"].first, models["fsdp2"].second])
    fully_shard(models["fsdp2"])
    register_fsdp_forward_method(models["fsdp2"], "by_another_name")
    x = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(dist.get_rank()))
    for name, model in models.items():
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.5)
        precision = prepare(model, optimizer, "bf16-mixed")
        for _ in range(3):
            with precision.forward():
                loss = model.by_another_name(x) if name == "fsdp2" else model(x)
            precision.backward(loss)
            precision.step()
            optimizer.zero_grad()
        precision.close()
    return {name: whole_weights(model) for name, model in models.items()}


def _converted() -> list[dict[str, Any]]:
    """Changes the weights to bfloat16 and back, before and after a first step; returns what became of them."""
    plan, results = recipe("bf16-mixed"), []
    for steps_before in (0, 2):
        model, alone = sharded(), DistributedDataParallel(start())
        formats = ShardedFormats(plan)
        formats.apply(model)
        for part in _mine(steps_before):
            for each in (model, alone):
                _gradients(each, plan, part[0])
        objects = list(map(id, model.parameters()))
        for each in (model, alone):
            convert_parameters(each, each.parameters(), torch.bfloat16)
        result: dict[str, Any] = {
            "same objects": objects == list(map(id, model.parameters())),
            "dtypes": {p.dtype for p in model.parameters()},
            "weights": (whole_weights(model), whole_weights(alone)),
        }
        (part,) = _mine(1)
        _gradients(model, plan, part[0])  # once more, with what the first pass has set up
        result["gradients"] = (_gradients(model, plan, part[0]), _gradients(alone, plan, part[0]))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        _gradients(model, plan, part[0])
        optimizer.step()
        result["moved"] = not torch.equal(whole_weights(model)["score.weight"], result["weights"][0]["score.weight"])
        optimizer.zero_grad()
        convert_parameters(model, model.parameters(), torch.float32)
        result["back"] = {g.dtype for g in _gradients(model, plan, part[0]).values()}
        results.append(result)
    return results


def _gradients(model: nn.Module, plan: Plan, part: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    with autocast_region(plan, "cpu"):
        loss = model(part)
    loss.backward()
    found = {}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        found[name.removeprefix("module.")] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return found


def _mixed_group() -> str:
    """Returns what is said when half of a group is converted."""
    model = sharded()
    try:
        convert_parameters(model, [model.blocks[0].up.weight], torch.bfloat16)
    except FloatwiseError as error:
        return str(error)
    return ""


def _masters(plan: Plan) -> dict[str, dict[str, Tensor]]:
    """Trains shards with 16-bit weights and float32 masters, and DDP so, too."""
    models = {"fsdp2": sharded(), "ddp": DistributedDataParallel(start())}
    for model in models.values():
        train(model, plan, _mine(4))
    return {name: whole_weights(model) for name, model in models.items()}


def _fsdp1() -> dict[str, Any]:
    """Returns losses under FSDP1 and DDP, and what is said of FSDP1's own mixed precision."""
    cpu = torch.device("cpu")
    losses = [train(m, "bf16-mixed", _mine(3))[1] for m in (FSDP1(start(), device_id=cpu), sharded())]
    said = {}
    for case, own, plan in (
        ("casts", MixedPrecision(param_dtype=torch.bfloat16), "bf16-mixed"),
        ("sums in bfloat16", MixedPrecision(reduce_dtype=torch.bfloat16), "bf16-mixed"),
        ("sums in float32", None, "bfloat16 sums"),
        ("agrees", MixedPrecision(reduce_dtype=torch.bfloat16), "bfloat16 sums"),
    ):
        try:
            train(FSDP1(start(), mixed_precision=own, device_id=cpu), PLANS[plan], [])
            said[case] = ""
        except FloatwiseError as error:
            said[case] = str(error)
    return {"losses": losses, "said": said}


def _checkpoint() -> dict[str, Any]:
    """Trains six steps, and three and three with a checkpoint in between that another model goes on from."""
    through, first, second = sharded(), sharded(), sharded(model=_other_start())
    losses = _steps(through, _start_of(through), _mine(6))
    resumed = _start_of(first)
    before = _steps(first, resumed, _mine(3))
    states = (get_model_state_dict(first), get_optimizer_state_dict(first, resumed[0]), resumed[1].state_dict())
    resumed[1].close()
    again = _start_of(second)
    set_model_state_dict(second, states[0])
    set_optimizer_state_dict(second, again[0], states[1])
    again[1].load_state_dict(states[2])
    after = _steps(second, again, _mine(6)[3:])
    again[1].close()
    return {
        "losses": (losses, before + after),
        "weights": (whole_weights(through), whole_weights(second)),
        "dtypes": {value.dtype for value in states[0].values() if isinstance(value, Tensor)},
    }


def _other_start() -> nn.Module:
    model = start()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def _start_of(model: nn.Module) -> tuple[torch.optim.Optimizer, Precision]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=2.0**8, growth_interval=2))
    return optimizer, prepare(model, optimizer, plan)


def _steps(
    model: nn.Module, training: tuple[torch.optim.Optimizer, Precision], parts: list[list[Tensor]]
) -> list[tuple[float, float]]:
    optimizer, precision = training
    losses = []
    for (part,) in parts:
        with precision.forward():
            loss = model(part)
        precision.backward(loss)
        losses.append((loss.item(), precision.step(clip_norm=1.0).loss_scale))
        optimizer.zero_grad()
    return losses

# SPDX-License-Identifier: Apache-2.0
"""What each of four ranks does for `test_ddp.py`; DDP works in pairs of ranks where two are enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.torch.distributed.training import batches, ranks_part, start, train, whole_weights
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from floatwise.errors import PlanError
from floatwise.plan import LossScale, Plan, Reductions, recipe
from floatwise.torch.distributed.convert import converting
from floatwise.torch.distributed.ddp import rebuild_reducer, sum_gradients_in

#: How a model may be wrapped; what `rebuild_reducer` has to keep.
WRAPPINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "finds unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
    "gradients are views": {"gradient_as_bucket_view": True},
    "small buckets": {"bucket_cap_mb": 1},
}
ELEMENTS = 64


class Linear(nn.Module):
    """Its loss is the weight times a constant, so that the constant is the gradient."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ELEMENTS, dtype=dtype))

    def forward(self, constant: Tensor) -> Tensor:
        return (self.weight * constant).sum()


def gradient_of(rank: int, dtype: torch.dtype) -> Tensor:
    """Returns the gradient that a rank has before it is summed; the second rank's first one is small."""
    generator = torch.Generator().manual_seed(rank)
    gradient = torch.randn(ELEMENTS, generator=generator)
    gradient[0] = 2.0 ** -(12 * rank)
    return gradient.to(dtype)


def run() -> dict[str, Any]:
    torch.set_num_threads(1)
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[rank // 2]
    return {
        "training": _training(pair),
        "overflow": _overflow(pair),
        "sums": _sums(None) | _sums(pair),
        "hooks": _hooks(pair),
        "rebuilt": {name: _rebuilt(pair, settings) for name, settings in WRAPPINGS.items()},
        "drift": _drift(pair),
        "sparse": _sparse(pair),
    }


def _plans() -> dict[str, Plan]:
    return {
        "fp32": recipe("fp32"),
        "bf16-mixed": recipe("bf16-mixed"),
        "fp16-mixed": recipe("fp16-mixed", loss_scale=LossScale(initial_scale=2.0**10)),
    }


def _training(pair: Any) -> dict[str, Any]:
    """Trains under each plan on two ranks, and on one process with all the data."""
    part = dist.get_rank(pair)
    results = {}
    for name, plan in _plans().items():
        alone, ddp = start(), DistributedDataParallel(start(), process_group=pair)
        data = batches(4)
        train(alone, plan, [[ranks_part(b, 0, 2), ranks_part(b, 1, 2)] for b in data])
        train(ddp, plan, [[ranks_part(b, part, 2)] for b in data])
        results[name] = (whole_weights(alone), whole_weights(ddp))
    return results


def _overflow(pair: Any) -> Any:
    """Trains with a loss scale that is too large for one rank's data only."""
    plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=2.0**10, growth_interval=2))
    ddp = DistributedDataParallel(start(), process_group=pair)
    rank = dist.get_rank()
    loss_of: Callable[[Tensor], Tensor] = ddp.forward
    calls = 0

    def forward(tokens: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        loss = loss_of(tokens)
        return loss * torch.inf if rank == 1 and calls == 2 else loss

    ddp.forward = forward  # type: ignore[method-assign]
    infos, _ = train(ddp, plan, [[ranks_part(b, dist.get_rank(pair), 2)] for b in batches(4)])
    return infos, whole_weights(ddp)


def _sums(group: Any) -> dict[tuple[int, str, str], tuple[Tensor, Tensor]]:
    """Returns the summed gradient by number of ranks, weight dtype and reduce_dtype, and DDP's own without a plan."""
    results = {}
    for stored, summed in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float32, torch.float32),
    ):
        grads = []
        for is_planned in (True, False):
            model = Linear(stored)
            ddp = DistributedDataParallel(model, process_group=group)
            if is_planned:
                sum_gradients_in(ddp, summed)
                made = ddp
            for _ in range(2):  # DDP makes its buckets anew after the first
                model.weight.grad = None
                ddp(gradient_of(dist.get_rank(group), stored)).backward()
            assert model.weight.grad is not None
            grads.append(model.weight.grad)
        sum_gradients_in(made, None)
        made.zero_grad()
        made(gradient_of(dist.get_rank(group), stored)).backward()
        assert isinstance(made.module.weight.grad, Tensor)
        assert torch.equal(made.module.weight.grad, grads[1]), "without a dtype, sums are DDP's own"
        results[dist.get_world_size(group), _name(stored), _name(summed)] = (grads[0], grads[1])
    return results


def _hooks(pair: Any) -> dict[str, Any]:
    """Returns what is said to a model with a hook or mixed precision of its own, by what it has and the plan says."""

    def mean_of_all(state: Any, bucket: Any) -> Any:
        future = dist.all_reduce(bucket.buffer(), group=pair, async_op=True).get_future()
        return future.then(lambda f: f.value()[0] / 2)

    mean_of_all.__annotations__ = {}  # DDP compares them with classes, and these are names

    def wrapped(hook: Callable[..., Any] | None = None) -> DistributedDataParallel:
        ddp = DistributedDataParallel(Linear(torch.float32), process_group=pair)
        if hook is not None:
            ddp.register_comm_hook(None if hook is mean_of_all else pair, hook)
        return ddp

    own = wrapped()
    own.mixed_precision = object()  # type: ignore[assignment]
    twice = wrapped()
    sum_gradients_in(twice, torch.bfloat16)
    return {
        "the user's, same dtype": _said(wrapped(mean_of_all), torch.float32),
        "the user's, other dtype": _said(wrapped(mean_of_all), torch.bfloat16),
        "float16, float16": _said(wrapped(fp16_compress_hook), torch.float16),
        "float16, float32": _said(wrapped(fp16_compress_hook), torch.float32),
        "mixed precision": _said(own, torch.float32),
        "ours, other dtype": _said(twice, torch.float16),
        "through prepare": _said_by_prepare(wrapped(mean_of_all)),
    }


def _said(ddp: DistributedDataParallel, dtype: torch.dtype) -> str:
    try:
        sum_gradients_in(ddp, dtype)
    except PlanError as error:
        return str(error)
    return ""


def _said_by_prepare(ddp: DistributedDataParallel) -> str:
    try:
        train(ddp, recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16")), [])
    except PlanError as error:
        return str(error)
    return ""


def _rebuilt(pair: Any, settings: dict[str, Any]) -> dict[str, list[bool]]:
    """Changes the weights to bfloat16 and back, before and after training; returns after what gradients agreed."""
    agreed: dict[str, list[bool]] = {"new": [], "used": [], "with a hook": [], "back": [], "not in no_sync": []}
    for steps_before, key in ((0, "new"), (2, "used")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
        ddp = DistributedDataParallel(model, process_group=pair, **settings)
        for _ in range(steps_before):
            _gradients_agree(ddp, torch.float32, pair)
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
        rebuild_reducer(ddp)
        agreed[key] = [_gradients_agree(ddp, torch.bfloat16, pair) for _ in range(3)]
    sum_gradients_in(ddp, torch.float32)
    rebuild_reducer(ddp)
    agreed["with a hook"] = [_gradients_agree(ddp, torch.bfloat16, pair) for _ in range(2)]
    with converting(ddp) as convert:
        for parameter in model.parameters():
            convert(parameter, torch.float32)
    agreed["back"] = [_gradients_agree(ddp, torch.float32, pair) for _ in range(2)]
    with ddp.no_sync():
        agreed["not in no_sync"] = [not _gradients_agree(ddp, torch.float32, pair)]
    return agreed


def _drift(pair: Any) -> bool:
    """Returns whether gradients agree when DDP is not told that dtypes have changed."""
    model = nn.Linear(3, 4)
    ddp = DistributedDataParallel(model, process_group=pair)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return _gradients_agree(ddp, torch.bfloat16, pair)


def _gradients_agree(ddp: DistributedDataParallel, dtype: torch.dtype, pair: Any) -> bool:
    """Returns whether both ranks of a pair have the same gradients from different data."""
    ddp.zero_grad()
    ddp((torch.ones(2, 3) * (1 + dist.get_rank(pair))).to(dtype)).sum().backward()
    mine = torch.cat([p.grad.flatten().float() for p in ddp.parameters() if p.grad is not None])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine, group=pair)
    return torch.equal(*both)


def _sparse(pair: Any) -> Tensor:
    """Returns the sparse gradient of an embedding, of which both ranks use row 2, summed in bfloat16."""
    model = nn.Embedding(4, 1, sparse=True)
    ddp = DistributedDataParallel(model, process_group=pair)
    sum_gradients_in(ddp, torch.bfloat16)
    ddp(torch.tensor([dist.get_rank(pair), 2])).sum().backward()
    assert model.weight.grad is not None
    return model.weight.grad.to_dense().flatten()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

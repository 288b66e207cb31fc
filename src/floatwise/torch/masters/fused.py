# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused steps on stretches of parameters, each stretch small enough to stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from floatwise.torch.masters.adam import AdamWeight, adam_kernel
from floatwise.torch.masters.flat import flat, is_sharded, laid_out_as, local
from floatwise.torch.masters.master import Split
from floatwise.torch.masters.registry import Stored
from floatwise.torch.masters.split import widen

__all__ = ["FusedSteps"]

# Elements of a stretch. On CPU the float32 values, gradients and two states of 2**18 elements, 4 MiB, stay between
# the caches of two cores; measured best of 2**15 to 2**19 on an EPYC with 1 MiB of second-level cache a core. On
# other devices a stretch only limits the memory for the float32 values and gradients, to 256 MiB.
_CPU_ELEMENTS = 2**18
_DEVICE_ELEMENTS = 2**25

# A cache line of float32 values: the fused kernels' unit of work.
_LINE = 16

# What the compiled pass reads gradients in.
_GRADIENTS = (torch.bfloat16, torch.float32)


@dataclass(slots=True)
class _Weight:
    """A parameter that has masters and states, in memory order, and what tells that it is still so."""

    parameter: Tensor
    stored: Stored
    weight: Tensor
    extra: Tensor | None
    kept: tuple[Tensor | None, ...]
    states: tuple[Tensor, ...]
    step: Tensor | None
    address: int
    grad: Tensor


@dataclass(slots=True)
class _Stretch:
    of: _Weight
    start: int
    stop: int


class FusedSteps:
    """Takes the steps of fused Adam, AdamW and SGD for parameters that have masters.

    Args:
      optimizer: One that `granularity_of` calls `part`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._known: dict[int, _Weight | None] = {}
        self._cpu_buffers: tuple[Tensor, Tensor] | None = None

    def step(self, waiting: Iterable[tuple[dict[str, Any], Tensor, Stored]]) -> list[Tensor]:
        """Updates parameters and returns those that it cannot: the optimizer's own first step makes their states."""
        rest: list[Tensor] = []
        ready: dict[tuple[int, torch.device], list[_Weight]] = {}
        groups = {id(group): group for group in self._optimizer.param_groups}
        for group, parameter, stored in waiting:
            weight = self._weight(group, parameter, stored)
            if weight is None:
                rest.append(parameter)
            else:
                ready.setdefault((id(group), weight.weight.device), []).append(weight)
        for (group_id, device), weights in ready.items():
            self._step_group(groups[group_id], device, weights)
            torch.autograd.graph.increment_version([local(weight.parameter) for weight in weights])
            for weight in weights:
                weight.grad = weight.weight  # a gradient that the loop drops is to be free
        return rest

    def _step_group(self, group: dict[str, Any], device: torch.device, weights: list[_Weight]) -> None:
        steps = [w.step for w in weights if w.step is not None]
        if steps:
            torch._foreach_add_(steps, 1)
        stretches = self._compiled_step(group, device, weights)
        if stretches is None:
            stretches = [_Stretch(weight, 0, weight.weight.numel()) for weight in weights]
        values, grads = self._buffers(device, sum(_whole_lines(s.stop - s.start) for s in stretches))
        for packed in _packed(stretches, values.numel()):
            self._update(group, packed, values, grads)

    def _compiled_step(
        self, group: dict[str, Any], device: torch.device, weights: list[_Weight]
    ) -> list[_Stretch] | None:
        """Updates whole lines in one pass and returns the ends of parameters that are left; None where it cannot."""
        if device.type != "cpu" or isinstance(self._optimizer, SGD) or group["amsgrad"] or not weights:
            return None
        kernel = adam_kernel()
        lower = [w.extra for w in weights if isinstance(w.stored.master, Split) and w.extra is not None]
        if kernel is None or len(lower) < len(weights) or any(w.grad.dtype not in _GRADIENTS for w in weights):
            return None
        numbers = torch.stack([w.step for w in weights if w.step is not None]).tolist()
        ends = [w.weight.numel() // _LINE * _LINE for w in weights]
        table = [
            AdamWeight(w.weight, low, w.grad, w.states[0], w.states[1], number, end)
            for w, low, number, end in zip(weights, lower, numbers, ends, strict=True)
        ]
        kernel.step(group, table, _is_decoupled(self._optimizer, group))
        return [_Stretch(w, end, n) for w, end in zip(weights, ends, strict=True) if end < (n := w.weight.numel())]

    def _weight(self, group: dict[str, Any], parameter: Tensor, stored: Stored) -> _Weight | None:
        """Returns a parameter with its gradient, when its states lie as its weight does."""
        grad = parameter.grad
        if grad is None or grad.is_sparse or not _is_sharded_as(parameter, grad):
            return None
        part = local(parameter)
        state = self._optimizer.state.get(parameter, {})
        keys = _state_keys(self._optimizer, group)
        known = self._known.get(id(parameter))
        if (
            known is None
            or known.parameter is not parameter
            or known.address != part.data_ptr()
            or known.weight.numel() != part.numel()
            or known.extra is not stored.master.extra
            or len(known.kept) != len(keys)
            or any(state.get(key) is not kept for key, kept in zip(keys, known.kept, strict=False))
        ):
            known = self._known[id(parameter)] = self._looked_up(parameter, part, stored, state, keys)
        if known is None:
            return None
        known.grad = flat(laid_out_as(part, local(grad)))
        return known

    def _looked_up(
        self, parameter: Tensor, part: Tensor, stored: Stored, state: dict[str, Any], keys: Sequence[str]
    ) -> _Weight | None:
        kept = tuple(state.get(key) for key in keys)
        *like_weight, step = kept
        if not all(isinstance(s, Tensor) and _lies_as(part, local(s)) for s in like_weight):
            return None
        weight = stored.weight(parameter)
        return _Weight(
            parameter,
            stored,
            weight,
            stored.master.extra,
            kept,
            states=tuple(flat(local(s)) for s in like_weight if s is not None),
            step=None if step is None else local(step),
            address=part.data_ptr(),
            grad=weight,
        )

    def _buffers(self, device: torch.device, elements: int) -> tuple[Tensor, Tensor]:
        """Returns room for float32 values and gradients; on CPU the same every time, which the cache then holds."""
        if device.type != "cpu":
            length = min(_DEVICE_ELEMENTS, elements)
            return torch.empty(length, device=device), torch.empty(length, device=device)
        if self._cpu_buffers is None:
            self._cpu_buffers = torch.empty(_CPU_ELEMENTS), torch.empty(_CPU_ELEMENTS)
        return self._cpu_buffers

    def _update(self, group: dict[str, Any], stretches: list[_Stretch], values: Tensor, grads: Tensor) -> None:
        parts: list[tuple[Tensor, Tensor]] = []
        begin = 0
        for stretch in stretches:
            of, start, stop = stretch.of, stretch.start, stretch.stop
            # Each stretch begins at a cache line, as the fused kernels take them.
            end = begin + stop - start
            value, grad = values[begin:end], of.grad[start:stop]
            of.stored.master.read(value, of.weight, start, stop)
            if grad.dtype is not torch.float32:
                widened = grads[begin:end]
                widen(widened, grad)
                grad = widened
            parts.append((value, grad))
            begin = _whole_lines(end)
        _fused_step(self._optimizer, group, stretches, parts)
        for stretch, (value, _) in zip(stretches, parts, strict=True):
            stretch.of.stored.master.write(value, stretch.of.weight, stretch.start, stretch.stop)


def _packed(stretches: Iterable[_Stretch], length: int) -> Iterable[list[_Stretch]]:
    """Yields lists of stretches that fit together into `length` elements."""
    packed: list[_Stretch] = []
    used = 0
    for whole in stretches:
        start = whole.start
        while start < whole.stop:
            stop = min(whole.stop, start + length - used)
            packed.append(_Stretch(whole.of, start, stop))
            used = _whole_lines(used + stop - start)
            start = stop
            if used >= length:
                yield packed
                packed, used = [], 0
    if packed:
        yield packed


def _whole_lines(elements: int) -> int:
    return -(-elements // _LINE) * _LINE


def _is_sharded_as(parameter: Tensor, grad: Tensor) -> bool:
    if not is_sharded(parameter):
        return not is_sharded(grad)
    return is_sharded(grad) and grad.placements == parameter.placements  # type: ignore[attr-defined]


def _lies_as(part: Tensor, state: Tensor) -> bool:
    """Returns whether a state can be read and written beside a weight, element by element in memory order."""
    of_part = (part.shape, part.stride(), part.device, torch.float32)
    return (state.shape, state.stride(), state.device, state.dtype) == of_part


def _is_decoupled(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    return type(optimizer) is AdamW or bool(group.get("decoupled_weight_decay", False))


def _state_keys(optimizer: Optimizer, group: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the states, those that lie as the weight does first, the number of steps last."""
    if isinstance(optimizer, SGD):
        return (*(["momentum_buffer"] if group["momentum"] != 0 else []), "step")
    return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []), "step")


def _fused_step(
    optimizer: Optimizer, group: dict[str, Any], stretches: list[_Stretch], parts: list[tuple[Tensor, Tensor]]
) -> None:
    """Calls the operator as torch/optim/adam.py and sgd.py of 2.13 do."""
    values, grads = [value for value, _ in parts], [grad for _, grad in parts]
    states = [[s.of.states[i][s.start : s.stop] for s in stretches] for i in range(len(stretches[0].of.states))]
    if isinstance(optimizer, SGD):
        of_sgd = ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize")
        momentum = states[0] if states else []
        torch._fused_sgd_(values, grads, momentum, is_first_step=False, **{name: group[name] for name in of_sgd})
        return
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        lr = lr.to(values[0].device, non_blocking=True)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    operator: Any = torch._fused_adamw_ if _is_decoupled(optimizer, group) else torch._fused_adam_
    steps = [s.of.step for s in stretches]
    third = states[2] if group["amsgrad"] else []
    names = ("weight_decay", "eps", "amsgrad", "maximize")
    operator(
        values, grads, states[0], states[1], third, steps,
        lr=lr, beta1=beta1, beta2=beta2, **{name: group[name] for name in names},
    )  # fmt: skip

# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused steps on stretches of parameters, each stretch small enough to stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from floatwise.torch.masters.flat import flat, is_sharded, laid_out_as, local
from floatwise.torch.masters.registry import Stored
from floatwise.torch.masters.split import widen

__all__ = ["FusedSteps", "is_ready"]

# Elements of a stretch. On CPU the float32 values, gradients and two states of 2**18 elements, 4 MiB, stay between
# the caches of two cores; measured best of 2**15 to 2**19 on an EPYC with 1 MiB of second-level cache a core. On
# other devices a stretch only limits the memory for the float32 values and gradients, to 256 MiB.
_CPU_ELEMENTS = 2**18
_DEVICE_ELEMENTS = 2**25

# A cache line of float32 values: the fused kernels' unit of work.
_LINE = 16


@dataclass
class _Weight:
    """A parameter in memory order, with its gradient and states."""

    stored: Stored
    weight: Tensor
    grad: Tensor
    states: Sequence[Tensor]
    step: Tensor | None


@dataclass
class _Stretch:
    of: _Weight
    start: int
    stop: int


def is_ready(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> bool:
    """Returns whether a parameter's states, which the optimizer's own first step makes, lie as its weight does."""
    grad = parameter.grad
    if grad is None or grad.is_sparse or is_sharded(grad) != is_sharded(parameter):
        return False
    if is_sharded(parameter) and grad.placements != parameter.placements:  # type: ignore[attr-defined]
        return False
    state = optimizer.state.get(parameter, {})
    kept = [state.get(key) for key in _state_keys(optimizer, group)]
    weight = local(parameter)
    return all(isinstance(s, Tensor) and local(s).stride() == weight.stride() for s in kept)


class FusedSteps:
    """Takes the steps of fused Adam, AdamW and SGD for parameters that have masters.

    Args:
      optimizer: One that `granularity_of` calls `part`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._cpu_buffers: tuple[Tensor, Tensor] | None = None

    def step(self, group: dict[str, Any], parameters: Iterable[tuple[Tensor, Stored]]) -> None:
        """Updates those parameters of a group that `is_ready` says yes to."""
        by_device: dict[torch.device, list[_Weight]] = {}
        for parameter, stored in parameters:
            weight = self._weight(group, parameter, stored)
            by_device.setdefault(weight.weight.device, []).append(weight)
        for device, weights in by_device.items():
            steps = [w.step for w in weights if w.step is not None]
            if steps:
                torch._foreach_add_(steps, 1)
            values, grads = self._buffers(device, sum(_whole_lines(w.weight.numel()) for w in weights))
            for stretches in _packed(weights, values.numel()):
                self._update(group, stretches, values, grads)

    def _weight(self, group: dict[str, Any], parameter: Tensor, stored: Stored) -> _Weight:
        part = local(parameter)
        state = self._optimizer.state[parameter]
        states = [flat(local(state[key])) for key in _state_keys(self._optimizer, group)]
        grad = local(parameter.grad) if parameter.grad is not None else torch.zeros_like(part)
        step = local(state["step"]) if "step" in state else None
        return _Weight(stored, stored.weight(parameter), flat(laid_out_as(part, grad)), states, step)

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


def _packed(weights: Iterable[_Weight], length: int) -> Iterable[list[_Stretch]]:
    """Yields lists of stretches that fit together into `length` elements."""
    stretches: list[_Stretch] = []
    used = 0
    for weight in weights:
        start = 0
        while start < weight.weight.numel():
            stop = min(weight.weight.numel(), start + length - used)
            stretches.append(_Stretch(weight, start, stop))
            used = _whole_lines(used + stop - start)
            start = stop
            if used >= length:
                yield stretches
                stretches, used = [], 0
    if stretches:
        yield stretches


def _whole_lines(elements: int) -> int:
    return -(-elements // _LINE) * _LINE


def _state_keys(optimizer: Optimizer, group: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(optimizer, SGD):
        return ("momentum_buffer",) if group["momentum"] != 0 else ()
    return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))


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
    decoupled = type(optimizer) is AdamW or group.get("decoupled_weight_decay", False)
    operator: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
    steps = [s.of.step for s in stretches]
    third = states[2] if group["amsgrad"] else []
    names = ("weight_decay", "eps", "amsgrad", "maximize")
    operator(
        values, grads, states[0], states[1], third, steps,
        lr=lr, beta1=beta1, beta2=beta2, **{name: group[name] for name in names},
    )  # fmt: skip

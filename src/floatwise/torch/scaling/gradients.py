# SPDX-License-Identifier: Apache-2.0
"""The gradients of several optimizers under one loss scale: which are unscaled, and what a step does to the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.torch.distributed.agreement import found_inf_everywhere
from floatwise.torch.masters import MasterWeights
from floatwise.torch.scaling.loss_scaler import LossScaler
from floatwise.torch.stored_weights import raise_grad

__all__ = ["ScaledGradients", "parameters_with_gradients", "several_ranks"]

_LOW = (torch.float16, torch.bfloat16)


def parameters_with_gradients(optimizer: Optimizer) -> list[Tensor]:
    """Returns the optimizer's parameters that have a gradient."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


class ScaledGradients:
    """Unscales, agrees and steps for a loss scaler, or without one when it is disabled.

    Args:
      scaler: The loss scaler.
      optimizers: All whose gradients it scales.
    """

    def __init__(self, scaler: LossScaler, optimizers: Sequence[Optimizer]) -> None:
        self._scaler = scaler
        self._optimizers = optimizers
        self._are_scaled = self._is_stepping = False
        watched = [*optimizers, *(o.inner for o in optimizers if isinstance(o, MasterWeights))]
        self._handles = [o.register_step_pre_hook(self._refuse) for o in watched if scaler.is_enabled()]

    def before_backward(self) -> None:
        """Makes sure that new gradients are not added to unscaled ones.

        Raises:
          BadInputError: They would be.
        """
        self._are_scaled = True
        self._clear_interrupted()
        unscaled = [o for o in self._optimizers if self._is_unscaled(o)]
        if any(parameters_with_gradients(o) for o in unscaled):
            raise BadInputError(
                "got a backward pass after precision.unscale(), whose gradients would be added to unscaled ones; call "
                "unscale() after the last micro-batch, and then step(), or precision.zero_grad() to drop the batch"
            )
        if unscaled:
            self.forget()

    def unscale(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Unscales the gradients that are not yet, and returns the optimizers that have some, on any rank.

        Raises:
          BadInputError: A parameter is in two of the optimizers, or the loss was not scaled.
        """
        if not self._scaler.is_enabled():
            return [o for o in optimizers if parameters_with_gradients(o)]
        # A rank without gradients learns from the others whether to step.
        taking_part = [o for o in optimizers if several_ranks() or parameters_with_gradients(o)]
        self._check(taking_part)
        for optimizer in taking_part:
            if not self._is_unscaled(optimizer):
                _raise_float16(optimizer)
                self._scaler.unscale_(optimizer)
            if not self._scaler._found_inf_per_device(optimizer):
                self._scaler._per_optimizer_states.pop(id(optimizer))  # no gradients, so nothing was found out
        return [o for o in taking_part if self._is_unscaled(o)]

    def agree(self, chosen: Sequence[Optimizer], ready: Sequence[Optimizer], finite: bool) -> bool:
        """Returns whether all optimizers step on all ranks: `finite` is true everywhere, and all gradients are.

        Args:
          chosen: The optimizers that are to step, the same on every rank.
          ready: Those that have gradients.
          finite: What this rank found out beside unscaling.
        """
        if several_ranks():
            parameters = [p for o in chosen for group in o.param_groups for p in group["params"]]
            device = parameters[0].device
            found = {device: torch.tensor(float(not finite), device=device)} if ready else {}
            finite = not any(f.item() for f in found_inf_everywhere(found, parameters).values())
        return self._scaler.agree(ready, finite) if self._scaler.is_enabled() else finite

    def step(self, optimizers: Sequence[Optimizer], closure: Callable[[], Any] | None = None) -> None:
        """Steps the optimizers and moves the scale; gradients of the others are multiplied when it moves.

        Args:
          optimizers: Those to step.
          closure: What the optimizer, then a single one, evaluates the loss with.
        """
        self._is_stepping = True
        try:
            for optimizer in optimizers:
                if closure is None:
                    self._scaler.step(optimizer)
                else:
                    self._scaler.step_with_closure(optimizer, _raising_float16(closure, optimizer))
        finally:
            self._are_scaled = self._is_stepping = False
        others = [o for o in self._optimizers if o not in optimizers and parameters_with_gradients(o)]
        before = self._scaler.get_scale() if others else 1.0
        factors = [1.0 if self._is_unscaled(o) else before for o in others]
        try:
            self._scaler.update()
        finally:  # it raises an alarm after many skips, and training may go on
            for optimizer, factor in zip(others, factors, strict=True):
                _multiply(parameters_with_gradients(optimizer), self._scaler.get_scale() / factor)

    def close(self) -> None:
        """Lets the optimizers step by themselves again."""
        for handle in self._handles:
            handle.remove()

    def _refuse(self, optimizer: Optimizer, *_: Any) -> None:
        # Without a backward pass it is no training: a distributed checkpoint makes states by steps on zeros.
        if self._are_scaled and not self._is_stepping:
            raise BadInputError(
                f"got a step of {type(optimizer).__name__} itself, with a loss scale in its gradients; call "
                "precision.step(), which takes the scale out and skips what is not finite"
            )

    def forget(self) -> None:
        """Takes note that the gradients are dropped; what unscaling found in them moves the scale."""
        self._are_scaled = False
        if any(self._is_at(optimizer, OptState.UNSCALED) for optimizer in self._optimizers):
            self._scaler.update()
        self._clear_interrupted()

    def grad(self, outputs: Tensor, inputs: Tensor | Sequence[Tensor], **options: Any) -> tuple[Tensor | None, ...]:
        """Returns `torch.autograd.grad` of the scaled outputs, divided by the scale."""
        gradients = torch.autograd.grad(self._scaler.scale(outputs), inputs, **options)
        if not self._scaler.is_enabled():
            return gradients
        inverse = 1.0 / self._scaler.get_scale()
        return tuple(None if g is None else (g.float() if g.dtype in _LOW else g) * inverse for g in gradients)

    def _clear_interrupted(self) -> None:
        """Forgets steps that were interrupted before the scale's update."""
        for optimizer in self._optimizers:
            if self._is_at(optimizer, OptState.STEPPED):
                self._scaler._per_optimizer_states.pop(id(optimizer))

    def _is_unscaled(self, optimizer: Optimizer) -> bool:
        return self._is_at(optimizer, OptState.UNSCALED)

    def _is_at(self, optimizer: Optimizer, stage: OptState) -> bool:
        state = self._scaler._per_optimizer_states.get(id(optimizer)) if self._scaler.is_enabled() else None
        return state is not None and state["stage"] is stage

    def _check(self, optimizers: Sequence[Optimizer]) -> None:
        parameters = [id(p) for o in optimizers for p in parameters_with_gradients(o)]
        if len(set(parameters)) < len(parameters):
            raise BadInputError(
                "got a parameter in two of the optimizers to step, where its gradient would be divided by the loss "
                "scale twice; step them in turn, with step(optimizer=...) and a backward for each"
            )
        if parameters and self._scaler._get_scale_async() is None:
            raise BadInputError(
                "got gradients of a loss that was not scaled; call precision.backward(loss), not loss.backward()"
            )


def several_ranks() -> bool:
    """Returns whether other processes train along with this one."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _raise_float16(optimizer: Optimizer) -> None:
    """Makes float16 gradients float32: what unscaling brings back may be too small for float16."""
    for parameter in parameters_with_gradients(optimizer):
        if parameter.grad is not None and parameter.grad.dtype is torch.float16:
            raise_grad(parameter)


def _raising_float16(closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
    def evaluate() -> Any:
        loss = closure()
        _raise_float16(optimizer)
        return loss

    return evaluate


@torch.no_grad()
def _multiply(parameters: Sequence[Tensor], factor: float) -> None:
    if factor != 1.0:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

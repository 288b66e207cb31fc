# SPDX-License-Identifier: Apache-2.0
"""Loss scaling for a script that does not scale: gradients reach `.grad` unscaled, bad steps change nothing.

The script clips, logs and accumulates its gradients between backward pass and update, so they must be unscaled by
then: a hook on each parameter unscales a gradient before it is accumulated. Gradients of 16-bit weights and of FSDP2's
shards are unscaled after the pass, in float32, where small ones do not vanish. A step after a non-finite gradient
finds no gradients: every torch optimizer passes over parameters without one, weight decay and step count included.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from floatwise.plan import LossScale
from floatwise.tap.backward import leaves_of
from floatwise.torch.distributed.agreement import found_inf_everywhere, unscale_gradients
from floatwise.torch.distributed.shards import GATHERED
from floatwise.torch.masters.flat import local
from floatwise.torch.scaling.evidence import heard_everywhere, largest_magnitude, largest_of, local_values
from floatwise.torch.scaling.loss_scaler import LossScaler
from floatwise.torch.stored_weights import allow_float32_grad, raise_grad

__all__ = ["ScaledBackward"]

#: Times a closure is evaluated again at a smaller scale before its non-finite gradients are let through: from 2^24
#: down to 1 and some.
_CLOSURE_ATTEMPTS = 26
#: What ranks tell each other before a step: a gradient in `.grad` is not finite, or one of the last backward pass.
_IN_GRAD, _IN_PASS = 1.0, 2.0
#: Set on a tensor whose gradients are unscaled.
_WATCHED = "_floatwise_unscaled"


class ScaledBackward:
    """Scales the tensors a backward pass starts from, and decides which steps happen.

    Args:
      settings: The plan's loss scale.
    """

    def __init__(self, settings: LossScale) -> None:
        self._settings = settings
        self._scaler: LossScaler | None = None
        self._loaded: dict[str, Any] | None = None
        self._found_inf: Tensor | None = None
        self._inverse: Tensor | None = None
        self._largest: Tensor | None = None
        self._leaves: list[Tensor] = []
        self._stepped = False
        self._in_backward = False
        self._optimizer_seen = False
        self._models: list[weakref.ref[nn.Module]] = []
        self._hidden: list[tuple[Tensor, Tensor]] = []
        self._set_aside: list[tuple[Tensor, Tensor | None]] = []
        self._shared: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._shards: list[Callable[[], Iterable[Tensor]]] = []

    @property
    def scaler(self) -> LossScaler | None:
        """The scaler, once there has been a backward pass."""
        return self._scaler

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the scaler's state; None before the first backward pass."""
        return None if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a scaler's state, this class's or `GradScaler`'s."""
        self._loaded = dict(state)
        if self._scaler is not None:
            self._scaler.load_state_dict(self._loaded)

    def share(self, parameters: Iterable[Tensor], shards: Callable[[], Iterable[Tensor]]) -> None:
        """Makes all ranks decide together after each backward pass of a model that is distributed over them.

        Args:
          parameters: The model's.
          shards: Gives those of them that FSDP2 shards. Their gradients are unscaled after the pass, in the shards:
            what autograd sees of them is gathered, may have 16 bits, and is summed over the ranks afterwards.
        """
        for parameter in parameters:
            self._shared[parameter] = True
        self._shards.append(shards)

    def name_in_messages(self, model: nn.Module) -> None:
        """Takes the names of parameters in messages from this model, too."""
        self._models.append(weakref.ref(model))
        if self._scaler is not None:
            self._scaler.watch(model)

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Unscales the gradients of these parameters from now on, before the script's own hooks see them."""
        for parameter in parameters:
            if parameter.requires_grad and not hasattr(parameter, _WATCHED) and not hasattr(parameter, GATHERED):
                setattr(parameter, _WATCHED, True)
                handle = parameter.register_hook(self._unscaled)
                hooks: Any = parameter._backward_hooks
                for key in [k for k in hooks if k != handle.id]:
                    hooks[key] = hooks.pop(key)  # autograd runs them in the order they were put in

    def scale(self, roots: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns the roots times the scale."""
        scaler = self._prepared(roots[0].device)
        # In every pass: scripts unfreeze, grow, clone and perturb, and each leaf's gradient is to be unscaled.
        self._leaves = list(leaves_of(roots))
        self.watch(self._leaves)
        low = [leaf for leaf in self._leaves if leaf.dtype is torch.float16 and not hasattr(leaf, GATHERED)]
        shards = [parameter for give in self._shards for parameter in give()]
        self._set_aside = [(leaf, leaf.grad) for leaf in (*low, *shards)]
        for leaf, _ in self._set_aside:
            leaf.grad = None
        return [scaler.scale(root) for root in roots]

    def after_backward(self) -> None:
        """Clears bad gradients where no optimizer could pass over them: the script updates by hand."""
        self._in_backward = False
        late = self._unscale_late()
        leaves, self._leaves = [*self._leaves, *late], []
        if self._found_inf is not None and self._scaler is not None:
            largest = self._largest_scaled(leaves, self._found_inf.device)
            if any(leaf in self._shared or hasattr(leaf, GATHERED) for leaf in leaves):
                self._found_inf, largest = heard_everywhere(self._found_inf, largest)
            self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)
        if not self._optimizer_seen and self._is_bad():
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf.grad.zero_()

    def before_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Hides the gradients from an optimizer that must not step."""
        if optimizer is None:
            return
        self._optimizer_seen = True
        stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self._must_skip(optimizer):
            if self._scaler is not None and self._scaler.is_near_alarm:
                self._stepped = True
                self.settle()  # raises, while the gradients to be named are there
            self._hidden = [(p, p.grad) for p in stepped]
            for parameter in stepped:
                parameter.grad = None

    def after_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Gives back what was hidden; the scale moves when the next backward pass begins."""
        for parameter, grad in self._hidden:
            parameter.grad = grad
        self._hidden = []
        self._stepped = True

    def wrap_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a closure that evaluates again at a smaller scale while gradients are not finite."""

        def evaluate() -> Any:
            loss = closure()
            for _ in range(_CLOSURE_ATTEMPTS):
                if not self._is_bad():
                    break
                loss = closure()  # its backward pass begins at a smaller scale
            return loss

        return evaluate

    def settle(self) -> None:
        """Moves the scale as what has happened since the last backward pass requires.

        A bad pass lowers it whether a step followed or not: many scripts pass over such a batch by themselves.
        """
        if self._scaler is not None and self._found_inf is not None and (self._stepped or self._is_bad()):
            self._scaler.update_from(self._found_inf, self._largest)
            self._found_inf.zero_()
            self._largest = None
        self._stepped = False

    def _prepared(self, device: torch.device) -> LossScaler:
        if self._scaler is None:
            self._scaler = LossScaler.from_plan(self._settings, device=device.type)
            if self._loaded is not None:
                self._scaler.load_state_dict(self._loaded)
            self._scaler.watch(*(model for reference in self._models if (model := reference()) is not None))
            self._scaler.scale(torch.zeros((), device=device))  # makes the scale's tensor
            self._found_inf = torch.zeros((), device=device)
        self.settle()
        self._inverse = torch.full((), 1.0 / self._scaler.get_scale(), device=device)
        self._in_backward = True
        return self._scaler

    def _unscaled(self, grad: Tensor) -> Tensor:
        if not self._in_backward or self._inverse is None or self._found_inf is None:
            return grad  # `torch.autograd.grad`, which is not scaled
        if grad.dtype is torch.float16:
            return grad  # see `_unscale_late`
        if grad.requires_grad:  # backward(create_graph=True)
            self._found_inf.add_((~grad.detach().isfinite().all()).float())
            return grad * self._inverse
        unscaled = grad.coalesce() if grad.is_sparse else grad.clone()
        values = unscaled._values() if grad.is_sparse else local(unscaled)
        torch._amp_foreach_non_finite_check_and_unscale_([values], self._found_inf, self._inverse)
        return unscaled

    def _unscale_late(self) -> list[Tensor]:
        """Unscales the gradients of 16-bit weights and of shards, and adds what was there before the pass."""
        set_aside, self._set_aside = self._set_aside, []
        if self._found_inf is None or self._inverse is None:
            return []
        for leaf, before in set_aside:
            raise_grad(leaf)
            if leaf.grad is None:
                if before is not None:
                    allow_float32_grad(leaf)
                leaf.grad = before
                continue
            torch._amp_foreach_non_finite_check_and_unscale_([local(leaf.grad)], self._found_inf, self._inverse)
            if before is not None:
                leaf.grad.add_(before)
        return [leaf for leaf, _ in set_aside]

    def _largest_scaled(self, leaves: list[Tensor], device: torch.device) -> Tensor:
        """Returns the largest magnitude that a gradient had before it was unscaled; sums of several passes count."""
        if self._scaler is None or self._settings.growth != "headroom":
            return torch.zeros((), device=device)
        found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for leaf in leaves:
            if leaf.grad is not None and (values := local_values(leaf.grad.detach())).numel():
                found.setdefault((values.device, values.dtype), []).append(values)
        if not found:
            return torch.zeros((), device=device)
        largest = largest_of([largest_magnitude(values).float() for values in found.values()], device)
        return largest * self._scaler.get_scale()

    def _is_bad(self) -> bool:
        return self._found_inf is not None and bool(self._found_inf.item())

    def _must_skip(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether a gradient is not finite, on any rank, and learns whether one of the last pass was not.

        The gradients themselves decide: a bad one may be left from an earlier pass of an accumulation.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        one = torch.ones((), device=parameters[0].device)
        found = unscale_gradients(optimizer, one, torch.zeros_like(one), True)  # times one: as they are
        if self._is_bad():
            found[one.device] = one * _IN_PASS
        worst = max((f.item() for f in found_inf_everywhere(found, parameters).values()), default=0.0)
        if worst == _IN_PASS and self._found_inf is not None:
            self._found_inf.fill_(1.0)
        return worst >= _IN_GRAD

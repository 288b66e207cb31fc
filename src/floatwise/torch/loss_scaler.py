# SPDX-License-Identifier: Apache-2.0
"""A gradient scaler that cannot collapse to zero and knows what it skipped."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.plan import LossScale

__all__ = ["LossScaler"]

# The smallest normal float32 (IEEE 754-2019, table 3.5): the reciprocal of a smaller scale can be infinite,
# and unscaling with it writes NaN into the weights.
_SMALLEST = 2.0**-126
_LARGEST = 2.0**127

# Findings kept on the device before they are counted; counting waits for the device once. Chosen: one wait in
# as many steps is not measurable.
_MOST_PENDING = 64


class LossScaler(GradScaler):
    """`torch.amp.GradScaler` with bounds on the scale and an account of the steps it skipped.

    Everything `GradScaler` promises holds: methods, constructor, state (each loads the other's), pickling,
    and how fused optimizers are served. What differs:

    * The scale moves within `floor` and `ceiling`: backing off stops at the one, growth at the other. A scale
      set by hand may lie outside and then only moves inward.
    * With a fused optimizer, gradients are unscaled after `step` too, whether it was skipped or not.
    * A closure is refused also when it is passed by position; `update` takes an int as well.

    Args:
      device: Device type of the scale, as in `GradScaler`.
      init_scale: First scale.
      growth_factor: What the scale is multiplied by after `growth_interval` updates without overflow.
      backoff_factor: What it is multiplied by after an overflow.
      growth_interval: See `growth_factor`.
      enabled: False makes every method pass its argument through.
      floor: Source: `min_loss_scale` of DeepSpeed and Megatron.
      ceiling: Source: `max_loss_scale` of apex.
      dynamic: False keeps the scale as it is; steps with non-finite gradients are skipped all the same.

    Raises:
      BadInputError: A scale that is not a positive float32, or bounds the wrong way round.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        floor: float = 1.0,
        ceiling: float = 2.0**24,
        dynamic: bool = True,
    ) -> None:
        for name, value in (("init_scale", init_scale), ("floor", floor), ("ceiling", ceiling)):
            _check_scale(name, value)
        if floor > ceiling:
            raise BadInputError(f"got floor {floor!r} above ceiling {ceiling!r}; give them the other way round")
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self.floor = floor
        self.ceiling = ceiling
        self.dynamic = dynamic
        self._skipped_steps = 0
        self._consecutive_skips = 0
        self._pending: list[Tensor] = []
        self._last: list[Tensor] | Literal["stepped", "skipped"] | None = None

    @classmethod
    def from_plan(cls, loss_scale: LossScale | None, device: str = "cuda") -> LossScaler:
        """Returns the scaler of a plan's `loss_scale`; None gives a disabled one."""
        if loss_scale is None:
            return cls(device, enabled=False)
        return cls(
            device,
            init_scale=loss_scale.initial_scale,
            growth_factor=loss_scale.growth_factor,
            backoff_factor=loss_scale.backoff_factor,
            growth_interval=loss_scale.growth_interval,
            floor=loss_scale.floor,
            ceiling=loss_scale.ceiling,
            dynamic=loss_scale.mode == "dynamic",
        )

    @property
    def skipped_steps(self) -> int:
        """How many updates followed a skipped step. Waits for the device."""
        self._count_pending()
        return self._skipped_steps

    @property
    def consecutive_skips(self) -> int:
        """How many of the last updates in a row followed a skipped step. Waits for the device."""
        self._count_pending()
        return self._consecutive_skips

    @property
    def last_step(self) -> Literal["stepped", "skipped"] | None:
        """What the last `step` did, also inside a fused optimizer; None before the first.

        Waits for the device.
        """
        if isinstance(self._last, list):
            self._last = "skipped" if any(found.item() for found in self._last) else "stepped"
        return self._last

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscales the gradients and steps `optimizer`, or skips the step when a gradient is not finite."""
        if not self._enabled:
            self._last = "stepped"
            return super().step(optimizer, *args, **kwargs)
        if any(callable(argument) for argument in args):
            raise RuntimeError(
                "got a closure: a loss scaler cannot step an optimizer that evaluates the loss again; "
                "use bfloat16 or float32 with it"
            )
        state = self._per_optimizer_states[id(optimizer)] if self._scale is not None else None
        if state is not None and state["stage"] is OptState.READY and _skips_inside(optimizer):
            # In place of the check that GradScaler makes here, at the same cost: both read every gradient
            # once.
            self._unscale_for_fused(optimizer, state)
        result = super().step(optimizer, *args, **kwargs)
        # A copy: `update` adds other optimizers' findings into these tensors.
        found = state["found_inf_per_device"].values() if state is not None else ()
        self._last = [tensor.clone() for tensor in found]
        return result

    def agree(self, optimizers: Sequence[Optimizer], finite: bool = True) -> bool:
        """Makes unscaled optimizers skip together when any has a non-finite gradient. Waits for the device.

        Args:
          optimizers: Those that step next, each unscaled by `unscale_`.
          finite: False makes them skip whatever unscaling found.

        Returns:
          True when all will step.
        """
        found = [t for o in optimizers for t in self._found_inf_per_device(o).values()]
        finite = finite and not any(tensor.item() for tensor in found)
        if not finite:
            for tensor in found:
                tensor.fill_(1.0)
        return finite

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Moves the scale as the steps since the last update require, or sets it to `new_scale`."""
        if not self._enabled:
            return
        if new_scale is not None:
            value = new_scale.item() if isinstance(new_scale, Tensor) and new_scale.numel() == 1 else new_scale
            if isinstance(value, (int, float)):
                _check_scale("new_scale", value)
            super().update(float(new_scale) if isinstance(new_scale, int) else new_scale)
            return
        before = self._scale.clone() if self._scale is not None else None
        self._note_findings()
        super().update()
        if before is not None and self._scale is not None:
            self._bound(self._scale, before)

    def update_from(self, found_inf: Tensor) -> None:
        """Moves the scale by a finding of the caller's, for loops that unscale gradients by themselves.

        Args:
          found_inf: A single number, on any device: zero when all gradients were finite.
        """
        if self._enabled:
            self._last = [found_inf.clone()]
            self._per_optimizer_states[id(self)]["found_inf_per_device"] = {found_inf.device: found_inf.clone()}
            self.update()

    def state_dict(self) -> dict[str, Any]:
        """Returns `GradScaler`'s state, the bounds and the account of skipped steps; empty when disabled."""
        state = super().state_dict()
        if self._enabled:
            state |= {"floor": self.floor, "ceiling": self.ceiling}
            state |= {"skipped_steps": self.skipped_steps, "consecutive_skips": self.consecutive_skips}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this class or of `GradScaler`.

        Warns:
          UserWarning: The saved scale had collapsed; it is raised to the floor.
        """
        if not self._enabled:
            return
        if state_dict:
            self.floor = state_dict.get("floor", self.floor)
            self.ceiling = state_dict.get("ceiling", self.ceiling)
            self._pending.clear()
            self._skipped_steps = state_dict.get("skipped_steps", 0)
            self._consecutive_skips = state_dict.get("consecutive_skips", 0)
            scale = state_dict.get("scale", self.floor)
            if not _SMALLEST <= scale <= _LARGEST:
                warnings.warn(
                    f"the saved loss scale is {scale!r}; going on from the floor, {self.floor!r}",
                    stacklevel=2,
                )
                state_dict = {**state_dict, "scale": self.floor}
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self._last = self.last_step
        self._count_pending()
        return super().__getstate__()

    def _unscale_for_fused(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        scale, _ = self._check_scale_growth_tracker("step")
        inverse = scale.double().reciprocal().float()
        # float16 gradients are let through: GradScaler leaves them to the fused kernel too.
        state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, torch.zeros_like(scale), True)
        state["stage"] = OptState.UNSCALED

    def _note_findings(self) -> None:
        found = [t for s in self._per_optimizer_states.values() for t in s["found_inf_per_device"].values()]
        if found:
            device = found[0].device
            self._pending.append(torch.stack([t.to(device, non_blocking=True) for t in found]).amax())
        if len(self._pending) >= _MOST_PENDING:
            self._count_pending()

    def _count_pending(self) -> None:
        for found in torch.stack(self._pending).tolist() if self._pending else ():
            self._skipped_steps += bool(found)
            self._consecutive_skips = self._consecutive_skips + 1 if found else 0
        self._pending.clear()

    def _bound(self, scale: Tensor, before: Tensor) -> None:
        """Limits the move from `before` to `scale`, without waiting for the device."""
        if self.dynamic:
            scale.clamp_(before.clamp(max=self.floor), before.clamp(min=self.ceiling))
        else:
            scale.copy_(before)


def _skips_inside(optimizer: Optimizer) -> bool:
    """True when the kernel reads `found_inf`; an optimizer that takes a scaler by keyword does all itself."""
    fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    return fused and "grad_scaler" not in inspect.signature(optimizer.step).parameters


def _check_scale(name: str, value: float) -> None:
    if not _SMALLEST <= value <= _LARGEST:
        raise BadInputError(f"got {name} {value!r}; expected a number from 2**-126 to 2**127, such as 65536.0")

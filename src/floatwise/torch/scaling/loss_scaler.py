# SPDX-License-Identifier: Apache-2.0
"""A gradient scaler that loses no steps to guessing, cannot collapse to zero, and says what it skipped and why."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.optim import Optimizer

from floatwise.plan import LossScale
from floatwise.torch.scaling.account import ScaleChange
from floatwise.torch.scaling.alarm import SkipAlarm
from floatwise.torch.scaling.closure import stepped_with
from floatwise.torch.scaling.moves import MovingScaler
from floatwise.torch.scaling.settings import check_settings, default_device, is_sound_scale

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["LossScaler"]


class LossScaler(MovingScaler):
    """`torch.amp.GradScaler` that grows by measured headroom, stays within bounds, and accounts for skipped steps.

    Everything `GradScaler` promises holds: methods, state (each loads the other's), pickling, and how fused optimizers
    are served. What differs:

    * The scale grows only where the gradients leave room (`growth`), so a healthy run loses no step to a guess.
    * It moves within `floor` and `ceiling`: backing off stops at the one, growth at the other. A scale set by hand may
      lie outside and then only moves inward.
    * All ranks skip a step or none does, whatever parts of the parameters they hold.
    * `last_step`, `skipped_steps`, `consecutive_skips` and `history` say what happened, with fused optimizers too.
    * When step after step is skipped, an error names the parameters whose gradients are not finite (`alarm_after`).
    * Gradients are unscaled after `step`, whether it was skipped or not and whatever the optimizer is.
    * A closure is refused also when it is passed by position; `step_with_closure` takes one. `update` takes an int.
    * Without CUDA, `LossScaler()` scales on the CPU. (`GradScaler()` disables itself there, as `LossScaler("cuda")`
      still does.)

    ```python
    scaler = LossScaler()
    scaler.watch(model)  # for the names in messages
    for inputs, target in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = criterion(model(inputs), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.last_step == "stepped":
            scheduler.step()
    ```

    Args:
      device: Device type of the scale. Default: that of the accelerator of this machine, else `cpu`. The scale itself
        is kept where the first loss is; give this to set the scale from a tensor on another device.
      init_scale: First scale. Default: `GradScaler`'s. Give a smaller one when the first steps are skipped, a larger
        one when small gradients vanish; `floatwise plan` measures it.
      growth_factor: What the scale is multiplied by when it grows. Default: `GradScaler`'s. There is no reason to
        change it; keep it a power of two, or scaling rounds.
      backoff_factor: What it is multiplied by after an overflow. Default and advice: as `growth_factor`.
      growth_interval: Updates without overflow after which it may grow. Default: `GradScaler`'s. Give fewer for a run
        of a few thousand steps, or when gradients shrink fast.
      enabled: False makes every method pass its argument through. Give it in a script that also trains in bfloat16 or
        float32, which need no scale.
      floor: Where backing off stops. Default: `min_loss_scale` of DeepSpeed and Megatron. Give a smaller one when
        unscaled gradients exceed 65504 and training is sound, as with a loss that is a sum over a large batch.
      ceiling: Where growth stops. Default: `max_loss_scale` of apex. Give a larger one when gradients vanish there.
      dynamic: False keeps the scale as it is; steps with non-finite gradients are skipped all the same. Default:
        `GradScaler` knows nothing else. Give it to reproduce a run with a static scale.
      growth: `"headroom"`, the default, grows only as far as gradients leave room, and not to where the scale has
        overflowed (floatwise.torch.scaling.growth). It reads each gradient once more a step. `"fixed"` grows whenever
        the interval is over, exactly as `GradScaler`; for comparing with it, and where the extra reading shows.
      headroom_bits: How many powers of two the largest gradient of a weight must stay below float16's largest value
        after growth. Default: 4, the margin of Graphcore PopART's automatic loss scaling (`binEdgeLocation` 0.0625).
        Give more when gradients of activations are much larger than those of weights, so that they overflow first;
        fewer when small gradients vanish.
      hysteresis: How many updates in a row must overflow before the scale backs off; later ones in that row back off
        each time, and an update without overflow starts anew. Default: 1, as `GradScaler`; Megatron's default is 2.
        Give 2 when single batches overflow at any scale. (As apex's `update_scale_hysteresis`. In Megatron's own
        scaler good updates between do not count; there a scale that tolerated one overflow tolerates none until it
        has grown.)
      window_log2: The smallest and the largest power of two that lost nothing when measured, as in a plan. Growth
        treats the first beyond the largest as if it had overflowed: it is not tried until gradients have shrunk.
        Default: nothing was measured. `from_plan` gives it; start within it.
      alarm_after: How many skipped steps in a row raise `NonFiniteGradientsError`. A warning precedes it when a step
        is skipped at the floor. Default: 25, because 24 overflows take the scale from the default ceiling down to the
        default floor; after one more the scale is not the cause. Give more when `hysteresis` is more than 1 and
        the first scale is a mere guess. None never raises nor warns.
      process_group: The ranks that skip together. Default: all. Give it when other ranks train models of their own, or
        step less often. It is not kept in a pickle.

    Raises:
      BadInputError: A scale that is not a positive float32, bounds the wrong way round, or another argument outside
        what is described here.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        floor: float = 1.0,
        ceiling: float = 2.0**24,
        dynamic: bool = True,
        growth: Literal["headroom", "fixed"] = "headroom",
        headroom_bits: int = 4,
        hysteresis: int = 1,
        window_log2: tuple[int, int] | None = None,
        alarm_after: int | None = 25,
        process_group: ProcessGroup | None = None,
    ) -> None:
        check_settings(init_scale, floor, ceiling, growth, headroom_bits, hysteresis, alarm_after)
        super().__init__(
            default_device() if device is None else device,
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
            floor=floor,
            ceiling=ceiling,
            dynamic=dynamic,
            growth=growth,
            headroom_bits=headroom_bits,
            hysteresis=hysteresis,
            window_log2=window_log2,
            process_group=process_group,
        )
        self._alarm = SkipAlarm(alarm_after)
        self._last: list[Tensor] | Literal["stepped", "skipped"] | None = None
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}
        self._skip_is_known = False

    @classmethod
    def from_plan(cls, loss_scale: LossScale | None, device: str | None = None) -> LossScaler:
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
            growth=loss_scale.growth,
            headroom_bits=loss_scale.headroom_bits,
            hysteresis=loss_scale.hysteresis,
            window_log2=loss_scale.window_log2,
        )

    @property
    def skipped_steps(self) -> int:
        """How many updates followed a skipped step. Waits for the device."""
        self._read_log()
        return self._account.skipped_steps

    @property
    def consecutive_skips(self) -> int:
        """How many of the last updates in a row followed a skipped step. Waits for the device."""
        self._read_log()
        return self._account.consecutive_skips

    @property
    def history(self) -> list[ScaleChange]:
        """The updates that changed the scale or followed a skipped step: the last 1,024. Waits for the device.

        It is pickled, but is not part of the state; after `load_state_dict` it begins anew.
        """
        self._read_log()
        return list(self._account.history)

    @property
    def last_step(self) -> Literal["stepped", "skipped"] | None:
        """What the last `step` did, also inside a fused optimizer; None before the first.

        Waits for the device.
        """
        if isinstance(self._last, list):
            self._last = "skipped" if any(found.item() for found in self._last) else "stepped"
        return self._last

    @property
    def is_near_alarm(self) -> bool:
        """True when another skipped step raises. Waits for the device."""
        return self._alarm.after is not None and self.consecutive_skips + 1 >= self._alarm.after

    def watch(self, *models: nn.Module) -> None:
        """Takes the names in messages from these models, beside those watched already; it keeps none of them alive.

        Without a model, names are those an optimizer was given with its parameters (`model.named_parameters()`), or
        places in the optimizer. A pickled scaler watches nothing.
        """
        self._alarm.watch(models)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscales the gradients and steps `optimizer`, or skips the step when a gradient is not finite.

        Args:
          optimizer: The optimizer.
          *args: Handed on to its `step`.
          **kwargs: Handed on to its `step`.

        Returns:
          What its `step` returned; None when it was skipped outside a fused optimizer.

        Raises:
          RuntimeError: A closure; the gradients are unscaled once, but it makes new ones. Or `step` was called before
            since the last `update`.
          AssertionError: The loss was not scaled, or no parameter has a gradient.
          ValueError: Gradients are float16, which loses what unscaling brings back, and the optimizer is not fused.
        """
        if not self._enabled:
            self._last = "stepped"
            return super().step(optimizer, *args, **kwargs)
        if any(map(callable, (*args, kwargs.get("closure")))):
            raise RuntimeError(
                "got a closure, whose evaluations a loss scaler's step cannot unscale; call "
                "scaler.step_with_closure(optimizer, closure)"
            )
        state = self._per_optimizer_states[id(optimizer)] if self._scale is not None else None
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if fused and state is not None and state["stage"] is OptState.READY and not _takes_scaler(optimizer):
            # In place of the check that GradScaler makes here, at the same cost: both read every gradient
            # once. float16 gradients are let through: GradScaler leaves them to the fused kernel too.
            state["found_inf_per_device"] = self._unscaled(optimizer, allow_fp16=True)
            state["stage"] = OptState.UNSCALED
        result = super().step(optimizer, *args, **kwargs)
        if fused and state is not None:
            self._last = list(state["found_inf_per_device"].values())
        return result

    def step_with_closure(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Any:
        """Steps an optimizer that evaluates the loss again, such as LBFGS or SAM; call `update` afterwards, as ever.

        Whenever the closure leaves a non-finite gradient, the scale backs off and it is called again; so it must zero
        the gradients itself. The step is skipped when no smaller scale is left; then weights and optimizer are as
        before, for which copies of both are kept during the step.

        Args:
          optimizer: The optimizer. When `unscale_` was called for it, its present gradients count too, as SAM's first
            pass: the step is skipped unless they are finite.
          closure: Zeros the gradients, calls `scaler.scale(loss).backward()` and returns the loss, unscaled.

        Returns:
          What `optimizer.step` returned; None when it was skipped.

        Raises:
          RuntimeError: `step` was called before since the last `update`.
        """
        if not self._enabled:
            self._last = "stepped"
            return optimizer.step(closure)
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        found, result = state["found_inf_per_device"], None
        stepped = not any(tensor.item() for tensor in found.values())
        if stepped:
            stepped, result = stepped_with(optimizer, closure, lambda: self._is_finite(optimizer), self._back_off)
        device = self._check_scale_growth_tracker("step_with_closure")[0].device
        state["found_inf_per_device"] = {device: torch.tensor(float(not stepped), device=device)}
        state["stage"] = OptState.STEPPED
        self._note_last(stepped)
        return result

    def agree(self, optimizers: Sequence[Optimizer], finite: bool = True) -> bool:
        """Makes unscaled optimizers skip together when any has a non-finite gradient. Waits for the device.

        Args:
          optimizers: Those that step next, each unscaled by `unscale_`.
          finite: False makes them skip whatever unscaling found. Default: True.

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
        """Moves the scale as the steps since the last update require, or sets it to `new_scale`.

        Raises:
          AssertionError: There was no step, nor a call of `unscale_`.
          BadInputError: `new_scale` is not a positive float32.
          NonFiniteGradientsError: `alarm_after` steps in a row were skipped. The scale has moved and the weights are
            sound: training can go on, and then the next error comes after as many more.
        """
        if not self._enabled:
            return
        found = self._finding()
        if found is None and new_scale is None:
            super().update()  # refuses
        if new_scale is not None:
            self._move_to(new_scale, found)
        elif found is not None:
            self._move(found)
            if found.device.type == "cpu":
                self._skip_is_known |= found.item() > 0
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
        self._evidence.clear()
        self._sound_alarm()

    def update_from(self, found_inf: Tensor, largest: Tensor | None = None) -> None:
        """Moves the scale by a finding of the caller's, for loops that unscale gradients by themselves.

        Args:
          found_inf: A single number, on any device: zero when all gradients were finite.
          largest: The largest magnitude of a scaled gradient, likewise. Without it growth has no measure of headroom;
            it still avoids scales that overflowed.
        """
        if self._enabled:
            self._last = [found_inf.clone()]
            self._per_optimizer_states[id(self)]["found_inf_per_device"] = {found_inf.device: found_inf.clone()}
            if largest is not None:
                self._evidence.see_largest(id(self), largest)
            self.update()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this class or of `GradScaler`.

        Raises:
          RuntimeError: The state is empty: it is of a disabled scaler.

        Warns:
          UserWarning: The saved scale had collapsed; it is raised to the floor.
        """
        if self._enabled and state_dict:
            scale, floor = state_dict.get("scale", self.floor), state_dict.get("floor", self.floor)
            if not is_sound_scale(scale):
                warnings.warn(f"the saved loss scale is {scale!r}; going on from the floor, {floor!r}", stacklevel=2)
                state_dict = {**state_dict, "scale": floor}
            self._alarm.reset()
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self._last = self.last_step
        return super().__getstate__() | {"_optimizers": {}}

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)

    def _maybe_opt_step(
        self, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        stepped = not any(found.item() for found in optimizer_state["found_inf_per_device"].values())
        self._note_last(stepped)
        return optimizer.step(*args, **kwargs) if stepped else None

    def _is_finite(self, optimizer: Optimizer) -> bool:
        """Unscales the gradients of a closure and returns whether all are finite."""
        return not any(found.item() for found in self._unscaled(optimizer, allow_fp16=False).values())

    def _back_off(self) -> bool:
        """Lowers the scale between two evaluations of a closure; False when that is not possible."""
        if not self.dynamic or self.get_scale() <= self.floor:
            return False
        scale, _ = self._check_scale_growth_tracker("step_with_closure")
        self._move(torch.ones_like(scale), counted=False)
        self._evidence.clear()
        return True

    def _note_last(self, stepped: bool) -> None:
        self._last = "stepped" if stepped else "skipped"
        self._skip_is_known |= not stepped

    def _sound_alarm(self) -> None:
        optimizers = [o for reference in self._optimizers.values() if (o := reference()) is not None]
        known, self._optimizers, self._skip_is_known = self._skip_is_known, {}, False
        if self._alarm.is_due(len(self._log), known):
            self._read_log()
            self._alarm.look(self._account, optimizers, self.floor if self.dynamic else None)


def _takes_scaler(optimizer: Optimizer) -> bool:
    """True when the optimizer takes a scaler by keyword and does all itself, instead of reading `found_inf`."""
    return "grad_scaler" in inspect.signature(optimizer.step).parameters

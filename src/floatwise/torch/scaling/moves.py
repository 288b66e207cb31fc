# SPDX-License-Identifier: Apache-2.0
"""How a loss scale moves: within bounds, after some patience with overflows, and up only where there is room."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from floatwise.torch.scaling.account import SkipAccount
from floatwise.torch.scaling.evidence import ScaleEvidence, largest_of
from floatwise.torch.scaling.growth import ScaleGrowth
from floatwise.torch.scaling.hysteresis import Hysteresis
from floatwise.torch.scaling.log import ScaleLog
from floatwise.torch.scaling.settings import check_scale

__all__ = ["MovingScaler"]


class MovingScaler(GradScaler):
    """A `GradScaler` with another way to move its scale, and an account of its moves.

    `LossScaler` explains the arguments. Backing off is decided on the device and growth on the host, which waits for
    the device only where growth is possible: once in a growth interval.
    """

    def __init__(
        self,
        device: str,
        init_scale: float,
        growth_factor: float,
        backoff_factor: float,
        growth_interval: int,
        enabled: bool,
        *,
        floor: float,
        ceiling: float,
        dynamic: bool,
        growth: Literal["headroom", "fixed"],
        headroom_bits: int,
        hysteresis: int,
        window_log2: tuple[int, int] | None,
        process_group: Any,
    ) -> None:
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        if not self._enabled:  # GradScaler's getters raise AttributeError then
            self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
            self._growth_interval = growth_interval
        self.floor = floor
        self.ceiling = ceiling
        self.dynamic = dynamic
        self._hysteresis = Hysteresis(hysteresis)
        self._growth: ScaleGrowth | None = None
        if dynamic and growth == "headroom":
            self._growth = ScaleGrowth(headroom_bits, None if window_log2 is None else 2.0 ** window_log2[1])
        self._evidence = ScaleEvidence(self._growth is not None, process_group)
        self._log = ScaleLog()
        self._account = SkipAccount()
        self._tracker_when_read = 0

    def scale(self, outputs: Any) -> Any:
        """Returns `outputs`, a tensor or nested lists, tuples or iterables of tensors, times the scale."""
        scaled = super().scale(outputs)
        if self._enabled:
            self._evidence.see_loss(outputs)
        return scaled

    def state_dict(self) -> dict[str, Any]:
        """Returns `GradScaler`'s state, the bounds, the counts, and what growth has learned; empty when disabled."""
        state = super().state_dict()
        self._read_log()
        if self._enabled:
            state |= {"floor": self.floor, "ceiling": self.ceiling}
            state |= self._hysteresis.state_dict() | self._account.state_dict()
            if self._growth is not None:
                state["_headroom"] = self._growth.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this class or of `GradScaler`."""
        if self._enabled and state_dict:
            self.floor = state_dict.get("floor", self.floor)
            self.ceiling = state_dict.get("ceiling", self.ceiling)
            self._hysteresis.load_state_dict(state_dict)
            self._log = ScaleLog()
            self._account.load_state_dict(state_dict)
            if self._growth is not None:
                self._growth.load_state_dict(state_dict.get("_headroom"))
        super().load_state_dict(state_dict)
        self._tracker_when_read = self._get_growth_tracker()

    def __getstate__(self) -> dict[str, Any]:
        self._read_log()
        return super().__getstate__()

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        return self._evidence.unscale(optimizer, inv_scale, found_inf, allow_fp16)

    def _unscaled(self, optimizer: torch.optim.Optimizer, allow_fp16: bool) -> dict[torch.device, Tensor]:
        """Unscales as `unscale_` does, without its bookkeeping."""
        scale, _ = self._check_scale_growth_tracker("step")
        # In float64, as GradScaler does; MPS has none.
        inverse = scale.reciprocal() if scale.device.type == "mps" else scale.double().reciprocal().float()
        return self._unscale_grads_(optimizer, inverse, torch.zeros_like(scale), allow_fp16)

    def _finding(self) -> Tensor | None:
        """Returns what the steps since the last update have found, on the scale's device; None without any."""
        found = [t for s in self._per_optimizer_states.values() for t in s["found_inf_per_device"].values()]
        return largest_of(found, self._scale.device) if found and self._scale is not None else None

    def _read_log(self) -> None:
        """Brings the account and growth up to date. Waits for the device when there is news."""
        for update in self._log.take():
            self._account.note(update)
            if self._growth is not None:
                self._growth.note(update, self._growth_interval)
            self._tracker_when_read = -1
        if self._tracker_when_read < 0:
            self._tracker_when_read = self._get_growth_tracker()

    def _move(self, found: Tensor, counted: bool = True) -> None:
        """Moves the scale by a finding; `counted` is False when there was no step."""
        scale, tracker = self._check_scale_growth_tracker("update")
        before = scale.clone()
        highest = before if self._must_not_grow() else before.clamp(min=self.ceiling)
        torch._amp_update_scale_(
            scale, tracker, found, self._growth_factor, self._backoff_factor, self._growth_interval
        )
        if self.dynamic:
            self._hysteresis.hold(scale, before, found)
            scale.clamp_(before.clamp(max=self.floor), highest)
        else:
            scale.copy_(before)
        self._note(before, found, counted)

    def _move_to(self, new_scale: float | Tensor, found: Tensor | None) -> None:
        """Sets the scale; `found` is that of a step before, if there was one."""
        if isinstance(new_scale, Tensor) and new_scale.numel() == 1:
            new_scale = new_scale.reshape(())  # GradScaler's own scale has no dimension
            check_scale("new_scale", new_scale.item())
        elif isinstance(new_scale, int | float):
            check_scale("new_scale", new_scale)
        before = self._check_scale_growth_tracker("update")[0].clone()
        GradScaler.update(self, float(new_scale) if isinstance(new_scale, int) else new_scale)
        self._note(before, torch.zeros_like(before) if found is None else found, counted=found is not None)
        self._read_log()
        if self._growth is not None:
            self._growth.forget()

    def _note(self, before: Tensor, found: Tensor, counted: bool) -> None:
        scale, _ = self._check_scale_growth_tracker("update")
        largest, loss_bad = self._evidence.largest(scale.device), self._evidence.loss_bad(scale.device)
        self._log.add(before, scale, found, largest, loss_bad, counted)
        if self._log.is_full:
            self._read_log()

    def _must_not_grow(self) -> bool:
        if self._growth is None or not self._may_grow():
            return False
        self._read_log()
        if not self._may_grow():
            return False
        scale, _ = self._check_scale_growth_tracker("update")
        largest = self._evidence.largest(scale.device).item()
        return not self._growth.allows(scale.item(), self._growth_factor, self._growth_interval, largest)

    def _may_grow(self) -> bool:
        """Returns whether the growth tracker may arrive at the interval in this update, as far as the host knows."""
        unread = len(self._log)
        return self._tracker_when_read + unread + 1 == self._growth_interval or unread >= self._growth_interval

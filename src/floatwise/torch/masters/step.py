# SPDX-License-Identifier: Apache-2.0
"""One step of any optimizer on parameters with masters: the result is that of float32 weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from floatwise.torch.masters.flat import is_sharded, local
from floatwise.torch.masters.fused import FusedSteps
from floatwise.torch.masters.granularity import Granularity, granularity_of
from floatwise.torch.masters.master import Stochastic
from floatwise.torch.masters.registry import Stored, changes, stored_of
from floatwise.torch.masters.stand_ins import StandIns, only_these

__all__ = ["MasterStep"]

# Elements of whole parameters that are in float32 at a time, unless one alone is larger. Chosen: 16 MiB of values
# and as many of gradients are nothing beside a model that needs 16-bit weights.
_ELEMENTS_AT_A_TIME = 2**22

# How many steps there were, in every group of an optimizer whose weights are rounded by chance. There, since groups
# are part of every kind of checkpoint.
_STEPS = "stochastic_rounding_steps"


class MasterStep:
    """Takes an optimizer's steps.

    Args:
      optimizer: Any optimizer; the parameters in its groups that have masters are updated in float32, the others as
        always.
      granularity: How much it must see at once; None for what is known of its class.
    """

    def __init__(self, optimizer: Optimizer, granularity: Granularity | None = None) -> None:
        self.optimizer = optimizer
        self._granularity = granularity
        self._fused = FusedSteps(optimizer)
        self._kept: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._all: StandIns | None = None
        self._is_within = False
        self._table: list[tuple[dict[str, Any], Tensor, Stored | None]] = []
        self._key: list[int] = []

    def run(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps once and returns the loss of `closure`."""
        self.recover()
        granularity = self._granularity or granularity_of(self.optimizer)
        if granularity == "all":
            return self._at_once(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._number_the_step()
        if granularity == "part":
            with torch.no_grad():
                waiting = self._fused.step(self._with_gradients())
        else:
            waiting = [parameter for _, parameter, _ in self._with_gradients()]
        self._by_parameters(waiting)
        return loss

    def begin(self) -> None:
        """Puts float32 stand-ins in all places, for a step that somebody else calls; `end` takes them out."""
        self.recover()
        self._number_the_step()
        self._all = StandIns(self.optimizer, self._kept)
        with torch.no_grad():
            self._all.take_places(self._updated())

    def end(self) -> None:
        """Ends what `begin` began, if it did."""
        if self._all is not None:
            with torch.no_grad():
                self._all.give_back()
            self._all = None

    @property
    def is_stepping(self) -> bool:
        """True within the optimizer's own step, whose class may call the hooked step of another: `super().step()`."""
        return self._is_within

    def recover(self) -> None:
        """Ends what `begin` began when an error has kept somebody else's step from reaching `end`."""
        if not self._is_within:
            self.end()

    def around(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a closure that evaluates the loss between `begin` and `end`."""
        return self._within(self._all.around(closure)) if self._all is not None else closure

    def with_stand_ins(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method of the optimizer, such as `first_step` of SAM, that sees float32 parameters."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._all is not None:
                return method(*args, **kwargs)
            self.begin()
            try:
                return self._within(method)(*args, **kwargs)
            finally:
                self.end()

        return call

    # -- details ------------------------------------------------------------------------------------------------

    def _at_once(self, closure: Callable[[], Any] | None) -> Any:
        try:
            self.begin()
            return self._unhooked_step(None if closure is None else self.around(closure))
        finally:
            self.end()

    def _within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before, self._is_within = self._is_within, True
            try:
                return function(*args, **kwargs)
            finally:
                self._is_within = before

        return call

    def _by_parameters(self, parameters: list[Tensor]) -> None:
        for some in _portions(parameters):
            with only_these(self.optimizer, some):
                stand_ins = StandIns(self.optimizer)
                try:
                    with torch.no_grad():
                        stand_ins.take_places(some)
                    self._unhooked_step()
                finally:
                    with torch.no_grad():
                        stand_ins.give_back()
        others = [p for _, p, stored in self._parameters() if stored is None and p.grad is not None]
        if others:
            with only_these(self.optimizer, others):
                self._unhooked_step()

    def _unhooked_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Calls the step that the optimizer's class defines, without the hooks that PyTorch wraps around it."""
        step: Any = type(self.optimizer).step
        while getattr(step, "hooked", False):
            step = step.__wrapped__
        return self._within(step)(*((self.optimizer,) if closure is None else (self.optimizer, closure)))

    def _number_the_step(self) -> None:
        groups = self.optimizer.param_groups
        steps = max((group.get(_STEPS, 0) for group in groups), default=0)
        is_by_chance = False
        for index, (_, parameter, stored) in enumerate(self._parameters()):
            if stored is not None and isinstance(stored.master, Stochastic):
                stored.master.chance = (steps, index, *_shard(parameter))
                is_by_chance = True
        if is_by_chance:
            for group in groups:
                group[_STEPS] = steps + 1

    def _parameters(self) -> Sequence[tuple[dict[str, Any], Tensor, Stored | None]]:
        """Returns every parameter with its group and its master."""
        groups = self.optimizer.param_groups
        key = [changes(), *map(id, groups), *(id(p) for group in groups for p in group["params"])]
        if key != self._key or any(s is not None and p.dtype is not s.dtype for _, p, s in self._table):
            self._table = [(group, p, stored_of(p)) for group in groups for p in group["params"]]
            self._key = [changes(), *key[1:]]
        return self._table

    def _updated(self) -> list[Tensor]:
        # Of the frozen ones, those with gradients: an optimizer looks at nothing else.
        return [p for _, p, s in self._parameters() if s is not None and (p.requires_grad or p.grad is not None)]

    def _with_gradients(self) -> Iterator[tuple[dict[str, Any], Tensor, Stored]]:
        for group, parameter, stored in self._parameters():
            if stored is not None and parameter.grad is not None:
                yield group, parameter, stored


def _portions(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    portion: list[Tensor] = []
    elements = 0
    for parameter in parameters:
        size = local(parameter).numel()
        if portion and elements + size > _ELEMENTS_AT_A_TIME:
            yield portion
            portion, elements = [], 0
        portion.append(parameter)
        elements += size
    if portion:
        yield portion


def _shard(parameter: Any) -> tuple[int, ...]:
    """Returns which shard of a parameter this process holds, the same for replicas of it."""
    if not is_sharded(parameter):
        return ()
    places = zip(parameter.device_mesh.get_coordinate(), parameter.placements, strict=True)
    return tuple(0 if placement.is_replicate() else coordinate for coordinate, placement in places)

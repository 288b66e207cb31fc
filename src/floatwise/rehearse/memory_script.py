# SPDX-License-Identifier: Apache-2.0
"""Memory and operators of one iteration of an unmodified script: an observer on the tap that makes a `StepRecord`.

Under a plan the script's tensors have the plan's formats, so every rehearsal of a plan gives the record that predicts
its memory and its speed for any device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from floatwise.plan import Plan
from floatwise.rehearse.memory import count_weights
from floatwise.rehearse.memory_curve import MemoryRecord, OldGradients
from floatwise.rehearse.memory_record import MemoryRecorder
from floatwise.rehearse.memory_update import slots_of
from floatwise.rehearse.roofline_record import OperatorRecorder
from floatwise.rehearse.roofline_step import masters_operators
from floatwise.rehearse.step_record import StepRecord
from floatwise.tap.events import Observer
from floatwise.torch import MasterWeights
from floatwise.torch.masters import stored_of

__all__ = ["ScriptStep"]


class _Listeners(TorchDispatchMode):
    """Tells those who listen what ran.

    It is open for as long as the script runs: one that opened between two iterations would be closed in place of a mode
    that the script itself opens around them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.listeners: tuple[MemoryRecorder | OperatorRecorder, ...] = ()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for listener in self.listeners:
            listener.seen(func, args, kwargs or {}, result)
        return result


class ScriptStep(Observer):
    """Records one iteration; it comes after the plan among the tap's observers.

    Its owner keeps `mode` open while the script runs, and calls `iteration_ended` after every iteration.

    Args:
      plan: The plan in force.
      at: The iteration that is recorded. Default 1, the second: the first makes optimizer states.

    Attributes:
      record: The record; None until that iteration has ended, and for a script that computes without modules.
      mode: The dispatch mode to keep open while the script runs.
    """

    def __init__(self, plan: Plan, at: int = 1) -> None:
        self.record: StepRecord | None = None
        self._plan, self._at = plan, at
        self._models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []
        self.mode = _Listeners()
        self._memory: MemoryRecorder | None = None
        self._operators = OperatorRecorder()
        self._old_gradients: OldGradients = "dropped"

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        if not any(root is model for model in self._models) and next(root.parameters(), None) is not None:
            self._models.append(root)
        if self._memory is not None:
            self._memory.phase = "forward"
            if self._old_gradients == "dropped" and self._has_gradients():
                self._old_gradients = "in_forward"
        return args, kwargs

    @override
    def backward_starts(self, roots: Sequence[Tensor]) -> Sequence[Tensor]:
        if self._memory is not None:
            self._memory.phase = "backward"
            if self._has_gradients():
                self._old_gradients = "kept"
        return roots

    @override
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if self._memory is not None:
            self._memory.note_gradients()

    @override
    def step_starts(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None and not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
        if self._memory is not None:
            self._memory.phase = "update"

    @override
    def step_ended(self, optimizer: Optimizer | None) -> None:
        if self._memory is not None:
            self._memory.note_states(self._states())
            self._memory.phase = "forward"  # what follows belongs to the next batch

    def iteration_ended(self, index: int) -> None:
        """Begins to record before the wanted iteration, and makes the record after it."""
        if index == self._at - 1 and self._models:
            model = nn.ModuleList(self._models)
            self._memory = MemoryRecorder(model.parameters(), [*model.buffers(), *self._states()])
            self.mode.listeners = (self._memory, self._operators)
        elif index == self._at and self._memory is not None:
            self.mode.listeners = ()
            self.record = self._made(self._memory)
            self._memory = None

    def _made(self, memory: MemoryRecorder) -> StepRecord:
        model = nn.ModuleList(self._models)
        stored = [p for p in model.parameters() if stored_of(p) is not None]
        updated = [p for p in model.parameters() if p.requires_grad]
        slots = [slots_of(_inner(o), self._states_of(o), o.param_groups[0]["params"]) for o in self._optimizers]
        record = MemoryRecord(
            moments=memory.moments(),
            inputs_bytes=0,  # the batch is made within the iteration, among the rest
            update_bytes=memory.update_bytes(),
            slots=sum(slots) / len(slots) if slots else 0.0,
            weights=count_weights(model, stored),
            old_gradients=self._old_gradients if updated else "dropped",
        )
        operators = self._operators.operators
        if self._optimizers and stored:
            operators += masters_operators(record, self._plan, _inner(self._optimizers[0]))
        return StepRecord(self._plan.recipe, record, operators)

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for model in self._models for p in model.parameters())

    def _states(self) -> list[Tensor]:
        return [state for optimizer in self._optimizers for state in self._states_of(optimizer)]

    def _states_of(self, optimizer: Optimizer) -> list[Tensor]:
        return [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]


def _inner(optimizer: Optimizer) -> Optimizer:
    return optimizer.optimizer if isinstance(optimizer, MasterWeights) else optimizer

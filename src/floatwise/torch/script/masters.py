# SPDX-License-Identifier: Apache-2.0
"""16-bit weights for a script that knows nothing of them: stored when its model first runs, updated by its optimizers.

Only weights that an optimizer of the script holds are stored in 16 bits. A copy that the script keeps to average
weights stays as it is: in 16 bits it would not move.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils.weak import WeakIdKeyDictionary

from floatwise.plan import Plan
from floatwise.tap.patches import Patches
from floatwise.tap.steps import is_nested_step
from floatwise.torch.accumulation import Accumulation
from floatwise.torch.masters import (
    MasterStep,
    MasterWeights,
    granularity_of,
    keep_states_float32,
    raise_states,
    stored_of,
)
from floatwise.torch.stored_weights import Float32View, store_weights

__all__ = ["RunMasters"]

#: Attributes of an optimizer whose weights have masters: what steps it, and the handles of our hooks.
_STEPPING, _HOOKS = "_floatwise_stepping", "_floatwise_hooks"


class RunMasters:
    """The masters of a script's weights.

    Args:
      plan: A plan whose weights are stored in 16 bits.
      paths_of: Gives the modules of a model by the paths that the plan speaks of.
    """

    def __init__(self, plan: Plan, paths_of: Callable[[nn.Module], Mapping[str, nn.Module]]) -> None:
        self._plan, self._paths_of = plan, paths_of
        self._held: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._looked_at: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._postponed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._accumulations: weakref.WeakKeyDictionary[nn.Module, Accumulation] = weakref.WeakKeyDictionary()
        self._pass = ExitStack()
        self._optimizer: Optimizer | None = None
        self._stepping: MasterStep | None = None
        self._has_closure = self._has_stand_ins = self._waits = False
        self._hidden: list[tuple[Tensor, Tensor]] = []

    def install(self, patches: Patches) -> None:
        """Hears of the script's optimizers, and stores weights before DDP makes its buckets of them."""
        patches.replace(Optimizer, "add_param_group", self._add_param_group)
        patches.replace(DistributedDataParallel, "__init__", self._wrap_in_ddp)
        patches.replace(AveragedModel, "update_parameters", _average_in_float32)

    def store(self, model: nn.Module) -> None:
        """Stores the weights that optimizers hold; at the first call, and after optimizers came."""
        if model in self._looked_at:
            return
        if self._waits:
            self._postponed.add(model)
            return
        self._looked_at.add(model)
        stored = store_weights(model, self._plan, paths=self._paths_of(model), wanted=self._is_wanted)
        if stored.parameters:
            self._accumulations[model] = Accumulation(model, stored.parameters)

    def before_backward(self) -> None:
        """Makes the gradients that the pass adds to ready for it; `after_backward` or its failure ends that."""
        for accumulation in list(self._accumulations.values()):
            self._pass.enter_context(accumulation.backward())

    def after_backward(self) -> None:
        """The backward pass is over."""
        self._pass.close()

    def closure_given(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Returns the closure for the step that is about to start."""
        self._has_closure = True

        def evaluate() -> Any:
            if self._stepping is not None and self._has_stand_ins:
                return self._stepping.around(closure)()
            loss = closure()
            if self._stepping is None and self._optimizer is not None and not self._waits:
                self._stepping = self._stepper(self._optimizer)  # the model ran for the first time just now
            if self._stepping is not None:
                self._update(self._stepping)
            return loss

        return evaluate

    def before_step(self, optimizer: Optimizer) -> None:
        """Makes ready for a step: what there is to do happens between the script's own hooks and the optimizer."""
        self._optimizer, self._stepping = optimizer, self._stepper(optimizer)
        if self._stepping is None:
            # An optimizer that has begun on float32 weights, and evaluates the model, ends on them.
            self._waits = granularity_of(optimizer) == "all"
            return
        pre, post = getattr(optimizer, _HOOKS)
        hooks: Any = optimizer  # its tables are OrderedDicts
        hooks._optimizer_step_pre_hooks.move_to_end(pre.id)
        hooks._optimizer_step_post_hooks.move_to_end(post.id, last=False)

    def after_step(self) -> None:
        """Ends what `before_step` began."""
        self._undo()
        self._optimizer = self._stepping = None
        self._has_closure = self._has_stand_ins = self._waits = False
        while self._postponed:
            self.store(self._postponed.pop())

    # -- details ------------------------------------------------------------------------------------------------

    def _is_wanted(self, parameter: Tensor) -> bool:
        return parameter in self._held and stored_of(parameter) is None

    def _stepper(self, optimizer: Optimizer) -> MasterStep | None:
        """Returns what steps an optimizer that holds weights with masters; None where the script does so itself."""
        if isinstance(optimizer, MasterWeights):
            return None
        if not any(stored_of(p) is not None for group in optimizer.param_groups for p in group["params"]):
            return None
        if not hasattr(optimizer, _HOOKS):
            made = MasterStep(optimizer)
            raise_states(optimizer)
            keep_states_float32(made)
            # On the optimizer itself, and with it to go; its pickles and copies are made of other things.
            setattr(optimizer, _STEPPING, made)
            pre = optimizer.register_step_pre_hook(lambda o, *_: None if is_nested_step(o) else self._act())
            post = optimizer.register_step_post_hook(lambda o, *_: None if is_nested_step(o) else self._undo())
            setattr(optimizer, _HOOKS, (pre, post))
        stepping: MasterStep = getattr(optimizer, _STEPPING)
        return stepping

    def _act(self) -> None:
        """Updates the weights, or puts float32 stand-ins in their places for the optimizer to update."""
        if self._stepping is None:
            return
        if granularity_of(self._stepping.optimizer) == "all":
            self._has_stand_ins = True
            self._stepping.begin()
        elif not self._has_closure:
            self._update(self._stepping)

    def _undo(self) -> None:
        """Takes the stand-ins out and gives hidden gradients back, before the script's own hooks look."""
        if self._stepping is not None and self._has_stand_ins:
            self._stepping.end()
            self._has_stand_ins = False
        hidden, self._hidden = self._hidden, []
        for parameter, grad in hidden:
            if parameter.grad is None:
                parameter.grad = grad

    def _update(self, stepping: MasterStep) -> None:
        """Takes the step in the optimizer's stead: without gradients it will find nothing to do."""
        stepping.run()
        groups = stepping.optimizer.param_groups
        self._hidden = [(p, p.grad) for group in groups for p in group["params"] if p.grad is not None]
        for parameter, _ in self._hidden:
            parameter.grad = None

    def _add_param_group(self, original: Callable[..., None]) -> Callable[..., None]:
        def add_param_group(optimizer: Any, group: dict[str, Any]) -> None:
            original(optimizer, group)
            for parameter in optimizer.param_groups[-1]["params"]:
                self._held[parameter] = True
            self._looked_at.clear()

        return add_param_group

    def _wrap_in_ddp(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(ddp: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            # The optimizer may be made later: all that is to be trained counts as held.
            for parameter in module.parameters():
                if parameter.requires_grad:
                    self._held[parameter] = True
            self.store(module)
            original(ddp, module, *args, **kwargs)
            if (accumulation := self._accumulations.pop(module, None)) is not None:
                self._accumulations[ddp] = accumulation.within(ddp)

        return init


def _average_in_float32(original: Callable[..., None]) -> Callable[..., None]:
    """Gives PyTorch's weight averaging the exact values: it cannot mix formats."""

    def update_parameters(average: Any, model: nn.Module) -> None:
        original(average, Float32View(model))

    return update_parameters

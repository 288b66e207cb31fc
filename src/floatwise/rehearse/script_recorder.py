# SPDX-License-Identifier: Apache-2.0
"""The same evidence from a script that knows nothing of it: an observer on the tap that makes a `Trial`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from typing_extensions import override

from floatwise.plan import Plan
from floatwise.rehearse.first_look import FirstLook, gradient_sample
from floatwise.rehearse.float8_script import Float8Script
from floatwise.rehearse.module_trace import ModuleTrace
from floatwise.rehearse.nonfinite import NonFinite, OperatorSite
from floatwise.rehearse.running import all_finite, gradients_of, parameters_of
from floatwise.rehearse.stalls import StallMeter
from floatwise.rehearse.trial import COMPARED_STEPS, Trained, Trial, counted
from floatwise.rehearse.watch import OperatorWatch
from floatwise.tap.events import Observer
from floatwise.torch.script.scaled_backward import ScaledBackward

__all__ = ["ScriptRecorder"]


_Method = TypeVar("_Method", bound=Callable[..., None])


def _unseen(method: _Method) -> _Method:
    """Makes what a method computes invisible to dispatch modes: it is no part of the training that they record."""

    @functools.wraps(method)
    def outside(*args: Any) -> None:
        with _disable_current_modes():
            method(*args)

    return cast("_Method", outside)


class ScriptRecorder(Observer):
    """Records a script's training under a plan; it comes after the plan among the tap's observers.

    The first backward pass of the first iteration is what every plan is compared by. Its loss scale is the plan's
    own: where that is too large, whoever runs the script runs it again with the scale that the steps came down to.

    Args:
      plan: The plan in force.
      name_of: Gives the path of a module.
      scaling: The script's loss scaling, when the plan has one.
      known: Places where a float32 run makes infinities or NaN, too.
      survey: Whether to record every operator's largest result and the FLOPs of each module.
      float8: Converts the script's linear layers, under a plan with float8 products.

    Attributes:
      watch: The dispatch mode to keep open while the script runs.
    """

    def __init__(
        self,
        plan: Plan,
        name_of: Callable[[nn.Module], str],
        scaling: ScaledBackward | None = None,
        known: frozenset[OperatorSite] = frozenset(),
        survey: bool = False,
        float8: Float8Script | None = None,
    ) -> None:
        self.trace = ModuleTrace(samples=True)
        self.watch = OperatorWatch(self.trace, known, survey)
        self._plan, self._name_of, self._scaling, self._float8 = plan, name_of, scaling, float8
        self._parameters: dict[str, nn.Parameter] = {}
        self._stalls = StallMeter(counted(plan, self._parameters))
        self._losses: list[float] = []
        self._gradients: list[dict[str, Tensor]] = []
        self._zero_share: dict[str, float] = {}
        self._sampled = False  # in this iteration
        self._finite = True
        self._skipped_before = 0
        self._start: FirstLook | None = None
        self._first: NonFinite | None = None

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        self.trace.attach(root, self._name_of)
        for name, parameter in parameters_of(root, self._name_of).items():
            self._parameters.setdefault(name, parameter)
        return args, kwargs

    @override
    @_unseen
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._finite &= all_finite([root.detach() for root in roots])
        grads = gradients_of(self._parameters)
        self._finite &= all_finite(list(grads.values()))
        # The first pass that has gradients: a micro-batch may be masked altogether.
        if not self._sampled and any(bool(grad.any()) for grad in grads.values()):
            self._sampled = True
            if len(self._gradients) < COMPARED_STEPS:
                self._gradients.append({name: gradient_sample(grad) for name, grad in grads.items()})
            if not self._zero_share:
                self._zero_share = {n: 1.0 - float(g.count_nonzero()) / max(g.numel(), 1) for n, g in grads.items()}

    @override
    @_unseen
    def step_starts(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.watch.updating = True
        self._stalls.before()

    @override
    @_unseen
    def step_ended(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._stalls.after()

    def iteration_ended(self, index: int, loss: float) -> None:
        """Works off what the iteration left."""
        self._losses.append(loss)
        skipped = self._skipped_steps
        finite = self._finite and math.isfinite(loss) and skipped == self._skipped_before
        self._skipped_before = skipped
        found = self.watch.first(finite)
        if self._start is None:
            self._start = self._first_look(loss, finite, found)
            self.trace.samples = False
        elif self._first is None and found is not None and found.phase != "backward":
            self._first = found
        if not self._sampled and len(self._gradients) < COMPARED_STEPS:
            self._gradients.append({})
        self._sampled, self._finite = False, True
        self.watch.begin_step(index + 1)

    def trial(self) -> Trial | None:
        """Returns what was recorded; None before the first iteration has ended."""
        if self._start is None:
            return None
        scaler = self._scaling.scaler if self._scaling is not None else None
        trained = Trained(
            losses=tuple(self._losses),
            gradients=tuple(self._gradients),
            skipped_steps=min(self._skipped_steps, len(self._losses)),  # one iteration may have several optimizers
            last_scale=scaler.get_scale() if scaler is not None else 1.0,
            stalled_share=self._stalls.shares,
            first_nonfinite=self._first or self._unfinished,
        )
        return Trial(self._plan, self._start, trained if math.isfinite(self._start.loss) else None)

    @property
    def _unfinished(self) -> NonFinite | None:
        """What an iteration found that the script did not finish."""
        found = self.watch.first(False)
        return found if found is not None and found.phase == "forward" else None

    @property
    def _skipped_steps(self) -> int:
        if self._scaling is None or self._scaling.scaler is None:
            return 0
        self._scaling.settle()
        return self._scaling.scaler.skipped_steps

    def _first_look(self, loss: float, finite: bool, found: NonFinite | None) -> FirstLook:
        settings = self._plan.loss_scale
        # Of a bad step the plan leaves no gradients.
        gradients, zero_share = (self._gradients[0], self._zero_share) if finite and self._gradients else ({}, {})
        return FirstLook(
            loss=loss,
            scale=None if not finite else settings.initial_scale if settings is not None else 1.0,
            gradients=gradients,
            zero_share=zero_share,
            calls=self.trace.calls,
            first_nonfinite=found,
            nonfinite_sites=frozenset(self.watch.sites),
            amax=self.watch.amax,
            flops=dict(self.watch.flops),
            float8=self._float8.use if self._float8 is not None else None,
        )

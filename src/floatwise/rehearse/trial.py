# SPDX-License-Identifier: Apache-2.0
"""Some steps of a training under a plan, and everything about them that a comparison with float32 needs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from floatwise.errors import NonFiniteGradientsError
from floatwise.plan import Plan
from floatwise.rehearse.first_look import FirstLook, gradient_sample, look
from floatwise.rehearse.nonfinite import NonFinite, OperatorSite
from floatwise.rehearse.running import Run, all_finite, gradients_of, opened
from floatwise.rehearse.stalls import StallMeter
from floatwise.rehearse.step_record import StepRecord
from floatwise.rehearse.training import MakeTraining
from floatwise.rehearse.watch import OperatorWatch

__all__ = ["COMPARED_STEPS", "Trained", "Trial", "counted", "rehearse", "train"]

#: First steps whose gradients are kept: after a few updates two runs have weights of their own.
COMPARED_STEPS = 4


@dataclass(frozen=True)
class Trained:
    """What training showed.

    Attributes:
      losses: Loss of each step.
      gradients: Samples of the unscaled gradients of the first steps, by parameter.
      skipped_steps: Steps whose gradients were not finite, so that nothing was updated.
      last_scale: Loss scale after the last step.
      stalled_share: Share of the updates with a gradient that changed nothing, by parameter; see `counted`.
      first_nonfinite: The first operator, in the first step that was spoilt, that made infinities or NaN.
    """

    losses: tuple[float, ...]
    gradients: tuple[Mapping[str, Tensor], ...] = field(repr=False)
    skipped_steps: int
    last_scale: float
    stalled_share: Mapping[str, float] = field(repr=False)
    first_nonfinite: NonFinite | None


@dataclass(frozen=True)
class Trial:
    """A training rehearsed under a plan.

    Attributes:
      plan: The plan, as it was given.
      start: The first batch at the weights that training begins with.
      trained: The steps. They begin at the loss scale that suits the first batch, so that skips on the way down
        from a scale that is too large do not hide what comes after; None where that batch has no finite loss, or
        gradients that no scale makes finite.
      step_record: Memory and operators of one iteration, where that was asked for.
    """

    plan: Plan
    start: FirstLook
    trained: Trained | None
    step_record: StepRecord | None = None

    @property
    def first_nonfinite(self) -> NonFinite | None:
        """The first operator that made infinities or NaN of finite numbers."""
        return self.start.first_nonfinite or (self.trained.first_nonfinite if self.trained is not None else None)

    @property
    def settling_skips(self) -> int:
        """Steps that would be skipped at first, until the plan's initial loss scale has come down."""
        settings = self.plan.loss_scale
        if settings is None or self.start.scale is None or settings.mode == "static":
            return 0
        return round(math.log(self.start.scale / settings.initial_scale) / math.log(settings.backoff_factor))

    def to_json(self) -> dict[str, Any]:
        """Returns what is not a tensor as JSON holds it."""
        found, trained = self.first_nonfinite, self.trained
        return {
            "recipe": self.plan.recipe,
            "losses": list(trained.losses) if trained is not None else [self.start.loss],
            "loss_scale": self.start.scale,
            "settling_skips": self.settling_skips,
            "skipped_steps": trained.skipped_steps if trained is not None else 0,
            "first_nonfinite": found.to_json() if found is not None else None,
        }


def rehearse(
    make_training: MakeTraining,
    plan: Plan,
    steps: int,
    *,
    seed: int = 0,
    known: frozenset[OperatorSite] = frozenset(),
    true_amax: Mapping[OperatorSite, float] | None = None,
) -> Trial:
    """Trains some steps under a plan as CUDA's matrix units would compute them.

    Args:
      make_training: Makes the training; called twice.
      plan: The plan.
      steps: How many steps.
      seed: What the random state is seeded with. Default 0.
      known: Places where a float32 run makes infinities or NaN, too: they are not the plan's.
      true_amax: Largest magnitude of each operator's result in float32.

    Raises:
      PlanError: This runtime cannot apply the plan.
    """
    survey = plan.is_float32
    start = look(make_training, plan, seed, known, true_amax=true_amax, survey=survey)
    if not start.is_finite:
        return Trial(plan, start, None)
    begun = plan
    if plan.loss_scale is not None and start.scale is not None:
        begun = plan.model_copy(
            update={"loss_scale": plan.loss_scale.model_copy(update={"initial_scale": start.scale})}
        )
    return Trial(plan, start, train(make_training, begun, steps, seed, known))


def train(
    make_training: MakeTraining,
    plan: Plan,
    steps: int,
    seed: int,
    known: frozenset[OperatorSite] | None = None,
    also: TorchDispatchMode | None = None,
) -> Trained:
    """Trains some steps under a plan; a loss that is not finite ends it.

    Args:
      make_training: Makes the training.
      plan: The plan.
      steps: How many steps.
      seed: What the random state is seeded with.
      known: As in `rehearse`; None to look for no operators.
      also: A dispatch mode to compute under.
    """
    with opened(make_training, plan, seed) as run, ExitStack() as stack:
        if also is not None:
            stack.enter_context(also)
        watch = stack.enter_context(OperatorWatch(run.trace, known)) if known is not None else None
        return _trained(run, steps, watch, StallMeter(counted(plan, run.parameters)))


def counted(plan: Plan, parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Returns the parameters whose lost updates say something.

    Stochastic rounding moves a weight now and then, and right on average: none of them.
    """
    return {} if plan.weights.master == "stochastic" else parameters


def _trained(run: Run, steps: int, watch: OperatorWatch | None, stalls: StallMeter) -> Trained:
    precision = run.precision
    losses: list[float] = []
    gradients: list[dict[str, Tensor]] = []
    skipped, first = 0, None
    for step in range(steps):
        if watch is not None:
            watch.begin_step(step)
        precision.zero_grad()
        with precision.forward():
            loss = run.training.loss(step)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            first = first or (watch.first(False) if watch is not None else None)
            break
        precision.backward(loss)
        if watch is not None:
            watch.updating = True
        precision.unscale()
        present = gradients_of(run.parameters)
        finite = all_finite(list(present.values()))
        if step < COMPARED_STEPS:
            gradients.append({name: gradient_sample(grad) for name, grad in present.items()})
        stalls.before()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of skipped steps, which are counted here
                stepped = precision.step().stepped
        except NonFiniteGradientsError:
            skipped += 1
            break
        skipped += not stepped
        if stepped:
            stalls.after()
        found = watch.first(finite) if watch is not None else None
        # Backward passes overflow now and then under a dynamic loss scale, and the scale comes down: no fault.
        first = first or (found if found is not None and found.phase != "backward" else None)
    scale = precision.scaler.get_scale()
    return Trained(tuple(losses), tuple(gradients), skipped, scale, stalls.shares, first)

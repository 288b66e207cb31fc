# SPDX-License-Identifier: Apache-2.0
"""Forward and backward pass of the first batch at the weights a training begins with, looked at in every detail.

Weights and batch are the same under every plan here, and only here: what differs is the plan's doing alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from floatwise.plan import LossScale, Plan
from floatwise.rehearse.float8_use import Float8Use
from floatwise.rehearse.module_trace import ModuleCall, sampled
from floatwise.rehearse.nonfinite import NonFinite, OperatorSite
from floatwise.rehearse.running import Run, all_finite, gradients_of, opened
from floatwise.rehearse.training import MakeTraining
from floatwise.rehearse.watch import OperatorWatch

__all__ = ["FirstLook", "gradient_sample", "look"]

#: Elements of a gradient that are compared.
GRADIENT_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class FirstLook:
    """What the first batch shows.

    Attributes:
      loss: The loss.
      scale: The largest scale of the plan, backing off from its initial one, at which all gradients are finite; 1
        without a loss scale; None where no scale from the plan's floor on is small enough.
      gradients: A sample of each parameter's gradient, unscaled, in float32.
      zero_share: Share of each parameter's gradient that is zero.
      calls: Samples of what modules took and returned, by path and number of the call.
      first_nonfinite: The first operator that made infinities or NaN.
      nonfinite_sites: All places that did.
      amax: Largest magnitude of each operator's result; only of a float32 run.
      flops: FLOPs of products by module, forward and backward; only of a float32 run.
      float8: The layers that multiplied in float8, under a plan for that; None under others.
    """

    loss: float
    scale: float | None
    gradients: Mapping[str, Tensor] = field(repr=False)
    zero_share: Mapping[str, float] = field(repr=False)
    calls: Mapping[tuple[str, int], ModuleCall] = field(repr=False)
    first_nonfinite: NonFinite | None
    nonfinite_sites: frozenset[OperatorSite]
    amax: Mapping[OperatorSite, float] = field(repr=False)
    flops: Mapping[str, int] = field(repr=False)
    float8: Float8Use | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite, and the gradients are at some scale."""
        return math.isfinite(self.loss) and self.scale is not None


def look(
    make_training: MakeTraining,
    plan: Plan,
    seed: int,
    known: frozenset[OperatorSite] = frozenset(),
    *,
    true_amax: Mapping[OperatorSite, float] | None = None,
    survey: bool = False,
    also: TorchDispatchMode | None = None,
) -> FirstLook:
    """Computes the loss of the first batch and its gradients under a plan. Nothing is updated.

    Args:
      make_training: Makes the training.
      plan: The plan.
      seed: What the random state is seeded with.
      known: Places where a float32 run makes infinities or NaN, too.
      true_amax: Largest magnitude of each operator's result in float32.
      survey: Whether to fill `amax` and `flops`.
      also: A dispatch mode to compute under.
    """
    with opened(make_training, plan, seed, samples=True) as run, ExitStack() as stack:
        if also is not None:
            stack.enter_context(also)
        watch = stack.enter_context(OperatorWatch(run.trace, known, survey))
        with run.precision.forward():
            loss = run.training.loss(0)
        value, scale = float(loss.detach()), None
        if math.isfinite(value):
            scale = _backward(loss, run, watch, plan.loss_scale)
        stack.close()
        first = watch.first(math.isfinite(value) and scale is not None)
        if first is not None and true_amax is not None:
            first = replace(first, true_amax=true_amax.get(first.site))
        grads = gradients_of(run.parameters)
        return FirstLook(
            loss=value,
            scale=scale,
            gradients={name: gradient_sample(grad) / (scale or 1.0) for name, grad in grads.items()},
            zero_share={name: 1.0 - float(grad.count_nonzero()) / max(grad.numel(), 1) for name, grad in grads.items()},
            calls=run.trace.calls,
            first_nonfinite=first,
            nonfinite_sites=frozenset(watch.sites),
            amax=watch.amax,
            flops=dict(watch.flops),
            float8=Float8Use.of([run.float8]) if run.float8 is not None else None,
        )


def gradient_sample(gradient: Tensor) -> Tensor:
    """Returns up to 65,536 values of a gradient in float32, evenly strided."""
    return sampled(gradient, GRADIENT_ELEMENTS)


def _backward(loss: Tensor, run: Run, watch: OperatorWatch, settings: LossScale | None) -> float | None:
    """Computes gradients at the largest scale that suits them all and returns it; None when there is none."""
    scale = settings.initial_scale if settings is not None else 1.0
    while True:
        watch.forget_backward()
        run.training.optimizer.zero_grad()
        (loss * torch.tensor(scale)).backward(retain_graph=True)
        if all_finite(list(gradients_of(run.parameters).values())):
            return scale
        if settings is None or settings.mode == "static" or scale * settings.backoff_factor < settings.floor:
            return None
        scale *= settings.backoff_factor

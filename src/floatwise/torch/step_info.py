# SPDX-License-Identifier: Apache-2.0
"""What a training step did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepInfo"]


@dataclass(frozen=True)
class StepInfo:
    """What one `Precision.step` did.

    Attributes:
      stepped: True when the optimizers updated the weights. Move the learning rate and average the weights only
        then.
      skipped: True when a gradient, or the norm to clip, was not finite and the weights are as before. Neither
        is true when no parameter had a gradient.
      loss_scale: The scale the next backward will use; 1.0 without loss scaling.
      grad_norm: The norm of all gradients before clipping, unscaled; infinite or NaN where that is why the step
        was skipped. None unless `clip_norm` was given.
    """

    stepped: bool
    skipped: bool
    loss_scale: float
    grad_norm: float | None = None

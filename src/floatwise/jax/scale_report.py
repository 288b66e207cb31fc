# SPDX-License-Identifier: Apache-2.0
"""What a loss scale has seen, read outside of `jit`, and the alarm when training does not go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from floatwise.errors import BadInputError, NonFiniteGradientsError
from floatwise.jax.leaf_values import LeafValues, leaf_values

if TYPE_CHECKING:
    from floatwise.jax.loss_scale import LossScale

__all__ = ["LossScaleReport", "first_replica", "raise_if_stuck", "read_report"]

# Gradients that a message names.
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class LossScaleReport:
    """The state of a loss scale as Python numbers.

    Attributes:
      scale: What the next loss is multiplied by.
      updates: Steps so far.
      skipped_steps: How many of them had gradients that were not finite.
      consecutive_skips: How many of the last in a row had.
      can_fall: Whether backing off can lower the scale further.
      at_ceiling: Whether growth has ended at the plan's ceiling.
      loss_was_bad: Whether the loss of the last skipped step was not finite itself.
    """

    scale: float
    updates: int
    skipped_steps: int
    consecutive_skips: int
    can_fall: bool
    at_ceiling: bool
    loss_was_bad: bool


def read_report(loss_scale: LossScale) -> LossScaleReport:
    """Returns the report of a loss scale. Waits for the device."""
    settings, scale = loss_scale.settings, float(first_replica(loss_scale.value))
    return LossScaleReport(
        scale=scale,
        updates=int(first_replica(loss_scale.updates)),
        skipped_steps=int(first_replica(loss_scale.skipped_steps)),
        consecutive_skips=int(first_replica(loss_scale.consecutive_skips)),
        can_fall=settings.mode == "dynamic" and scale > settings.floor,
        at_ceiling=settings.mode == "dynamic" and scale >= settings.ceiling,
        loss_was_bad=bool(first_replica(loss_scale.loss_was_bad)),
    )


def raise_if_stuck(loss_scale: LossScale, alarm_after: int, grads: Any) -> None:
    """Raises NonFiniteGradientsError after `alarm_after` skipped steps in a row; `LossScale.raise_if_stuck` explains.

    Raises:
      BadInputError: `alarm_after` is not positive.
    """
    if alarm_after < 1:
        raise BadInputError(f"got alarm_after {alarm_after!r}; expected 1 or more skipped steps")
    report = read_report(loss_scale)
    if report.consecutive_skips < alarm_after:
        return
    leaves = leaf_values(grads)
    bad = [leaf for leaf in leaves if leaf.infinite or leaf.nan]
    end = "is still falling" if report.can_fall else "falls no further"
    text = (
        f"{report.consecutive_skips} steps in a row were skipped for gradients that are not finite, at loss scale "
        f"{report.scale:g}, which {end}"
    )
    if bad:
        more = f"; and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        named = "; ".join(map(str, bad[:_MOST_NAMED]))
        text += f". Not finite are {len(bad)} of {len(leaves)} gradients: {named}{more}"
    raise NonFiniteGradientsError(f"{text}. {_advice(report, bad)}", bad, report.consecutive_skips)


def first_replica(array: Any) -> Any:
    """Returns the single number of an array of shape [], or the first of one that `pmap` has replicated."""
    return np.asarray(array).reshape(-1)[0]


def _advice(report: LossScaleReport, bad: list[LeafValues]) -> str:
    if report.loss_was_bad:
        return (
            "The loss was not finite either, which no loss scale cures: look at the inputs, keep the part where the "
            "forward pass first overflows in float32 (keep_float32, island), or compute in bfloat16"
        )
    if report.can_fall:
        return "Start with a smaller initial_scale"
    where = "the parts named here" if bad else "the part whose gradients are not finite"
    return (
        f"The loss was finite, so they arise in the backward pass: keep {where} in float32 (keep_float32, island), or "
        "compute in bfloat16; jax.debug_nans(True) names an operation that makes NaN"
    )

# SPDX-License-Identifier: Apache-2.0
"""The optimizer that a plan asks for, around any optax optimizer."""

from __future__ import annotations

from typing import Any

import jax

from floatwise.jax.finite import AxisName
from floatwise.jax.optax_parts import optax
from floatwise.jax.policy_text import PolicyLike, as_policy
from floatwise.jax.skipping import skip_if_not_finite
from floatwise.jax.weights import float32_master, kahan, split_master, stochastic_rounding
from floatwise.plan import Plan

__all__ = ["plan_optimizer"]


def plan_optimizer(
    inner: optax.GradientTransformation,
    plan: PolicyLike,
    *,
    key: jax.Array | int = 0,
    axis_name: AxisName = None,
) -> optax.GradientTransformation:
    """Returns `inner` updating the weights as a plan's `[weights]` says, and skipping steps where it scales the loss.

    Args:
      inner: An optax optimizer, whole, clipping and schedules included. Its gradients must be unscaled.
      plan: A `Plan` or a recipe's name. A bare policy says nothing of weights or loss scale, so `inner` stays as it is.
      key: Of stochastic rounding.
      axis_name: As for `skip_if_not_finite`.
    """
    meant = as_policy(plan)
    if not isinstance(meant, Plan):
        return inner
    wrapped: Any = {
        "none": lambda: inner,
        "float32": lambda: float32_master(inner),
        "split": lambda: split_master(inner),
        "kahan": lambda: kahan(inner),
        "stochastic": lambda: stochastic_rounding(inner, key),
    }[meant.weights.master]()
    return wrapped if meant.loss_scale is None else skip_if_not_finite(wrapped, axis_name=axis_name)

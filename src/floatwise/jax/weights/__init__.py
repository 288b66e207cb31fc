# SPDX-License-Identifier: Apache-2.0
"""Optax optimizers for 16-bit weights, which keep the updates that rounding to nearest would drop."""

from __future__ import annotations

from floatwise.jax.weights.float32 import float32_master
from floatwise.jax.weights.kahan import kahan
from floatwise.jax.weights.split import join_halves, split_halves, split_master
from floatwise.jax.weights.stochastic import stochastic_rounding

__all__ = ["float32_master", "join_halves", "kahan", "split_halves", "split_master", "stochastic_rounding"]

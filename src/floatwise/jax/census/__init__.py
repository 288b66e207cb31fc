# SPDX-License-Identifier: Apache-2.0
"""What a JAX program really computes: the formats of its products, its leaks, its loss scaling, its silent failures."""

from __future__ import annotations

from floatwise.census import Finding, Operator, OperatorCensus
from floatwise.jax.census.leaks import Leak, leaks
from floatwise.jax.census.operators import operator_dtypes
from floatwise.jax.census.scaling import LossScaling, loss_scaling
from floatwise.jax.census.steps import examine_gradients, examine_update

__all__ = [
    "Finding",
    "Leak",
    "LossScaling",
    "Operator",
    "OperatorCensus",
    "examine_gradients",
    "examine_update",
    "leaks",
    "loss_scaling",
    "operator_dtypes",
]

# SPDX-License-Identifier: Apache-2.0
"""A second computation of the same values that the compiler keeps apart from the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from floatwise.probe.jax_taps import is_real

__all__ = ["behind"]


def behind(loss: Any, values: Sequence[Any]) -> list[Any]:
    """Returns values behind a barrier that the loss has passed; what is no array of numbers, as it is.

    Under `shard_map`, values that do not vary over the devices as the loss does pass barriers of their own: one barrier
    would make all vary alike.
    """
    passed = list(values)
    real = [i for i, value in enumerate(values) if is_real(value)]
    alike = [i for i in real if _varies(values[i]) == _varies(loss)]
    for i in (i for i in real if i not in alike):
        (passed[i],) = jax.lax.optimization_barrier((jnp.asarray(values[i]),))  # type: ignore[no-untyped-call]
    together = (loss, *(jnp.asarray(values[i]) for i in alike))
    for i, value in zip(alike, jax.lax.optimization_barrier(together)[1:], strict=True):  # type: ignore[no-untyped-call]
        passed[i] = value
    return passed


def _varies(value: Any) -> Any:
    """Returns over which axes of a mesh a value varies, as JAX writes it; JAX before 0.6 does not tell."""
    if not hasattr(jax, "typeof"):
        return None
    aval: Any = jax.typeof(value)
    return getattr(aval, "vma", None) or getattr(getattr(aval, "mat", None), "varying", None) or frozenset()

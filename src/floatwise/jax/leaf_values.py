# SPDX-License-Identifier: Apache-2.0
"""How many values of each leaf of a tree are zero, infinite or NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from floatwise.jax.dtypes import is_floating
from floatwise.jax.paths import with_paths

__all__ = ["LeafValues", "leaf_values"]


@dataclass(frozen=True, kw_only=True)
class LeafValues:
    """What kinds of values a leaf holds.

    Attributes:
      path: Where it stands in its tree.
      shape: Its shape.
      dtype: Its format.
      values: How many values it has.
      zero: How many are zero.
      infinite: How many are infinite.
      nan: How many are NaN.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    values: int
    zero: int
    infinite: int
    nan: int

    def __str__(self) -> str:
        kinds = ((self.infinite, "infinite"), (self.nan, "NaN"))
        counts = " and ".join(f"{count:,} {kind}" for count, kind in kinds if count)
        return f"{self.path or '(root)'} (shape {list(self.shape)}, {counts or 'none'} of {self.values:,} values)"


def leaf_values(tree: Any) -> list[LeafValues]:
    """Returns what each floating leaf of a tree holds. Waits for the device, once."""
    leaves = [(path, leaf) for path, leaf in with_paths(tree) if is_floating(leaf)]
    counts: list[Any] = jax.device_get([_counts(leaf) for _, leaf in leaves])
    return [
        LeafValues(
            path=path,
            shape=tuple(leaf.shape),
            dtype=str(leaf.dtype),
            values=int(np.prod(leaf.shape, dtype=np.int64)),
            zero=int(zero),
            infinite=int(infinite),
            nan=int(nan),
        )
        for (path, leaf), (zero, infinite, nan) in zip(leaves, counts, strict=True)
    ]


def _counts(leaf: Any) -> tuple[Any, ...]:
    return tuple(jnp.sum(found(leaf), dtype=jnp.int32) for found in (lambda x: x == 0, jnp.isinf, jnp.isnan))

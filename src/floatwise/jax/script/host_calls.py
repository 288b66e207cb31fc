# SPDX-License-Identifier: Apache-2.0
"""Calls of this process from inside a compiled training step, once per gradient, however the step is transformed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.extend import core

__all__ = ["agreed", "device_number", "host_function", "is_traced", "pass_if", "witness_of"]


def host_function(
    host: Callable[..., Any],
    result: Any,
    merges: Sequence[Callable[..., Any]],
    prepare: Callable[..., Sequence[Any]] | None = None,
) -> Callable[..., Any]:
    """Returns a function of arrays that calls `host` with them and returns what it returns.

    One call is made under `vmap` too, of values merged over the mapped axis; nothing is differentiated through it. It
    works under `jit`, `scan`, `cond`, `pmap` and `shard_map`, where each device calls. Make it once: outside of `jit`
    each one is compiled.

    Args:
      host: Gets one array per value; called in a thread of JAX's, where JAX may not compute.
      result: Shape and dtype of what it returns (`jax.ShapeDtypeStruct`).
      merges: For each value how it is merged over a leading axis, such as `jnp.mean`.
      prepare: Computes from the values, when they are merged, what the host gets. Default: the values themselves.
    """

    @custom_vmap
    def call(*given: Any) -> Any:
        return io_callback(host, result, *(given if prepare is None else prepare(*given)))

    @call.def_vmap
    def mapped(size: int, batched: Sequence[bool], *given: Any) -> Any:
        merged = [merge(v, axis=0) if b else v for v, b, merge in zip(given, batched, merges, strict=True)]
        out = call(*merged)
        return out, jax.tree.map(lambda _: False, out)

    return lambda *values: call(*map(jax.lax.stop_gradient, values))


def agreed(value: Any, collective: Callable[..., Any]) -> Any:
    """Returns a value agreed over the mapped axes around (`pmap`, `shard_map`), by `jax.lax.pmin` or `pmax`."""
    for axis in _axes():
        try:
            value = collective(value, axis)
        except ValueError:
            pass  # under shard_map's check: it is the same along this axis already
    return value


def device_number() -> Any:
    """Returns 0 on the first device of the mapped axes around, and more on the others: int32 of shape []."""
    number = jnp.int32(0)
    for axis in _axes():
        number += jax.lax.axis_index(axis)
    return number


def is_traced(tree: Any) -> bool:
    """Returns whether a value of a tree is not computed yet, but traced."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def witness_of(tree: Any) -> Any:
    """Returns a float32 of shape [] that is known when all inexact arrays of a tree are; its value says nothing."""
    firsts = [jnp.ravel(leaf)[:1].real.astype(jnp.float32) for leaf in jax.tree.leaves(tree) if _is_inexact(leaf)]
    return jnp.sum(jnp.concatenate(firsts)) if firsts else jnp.float32(0)


def pass_if(condition: Any, tree: Any) -> Any:
    """Returns a tree whose inexact arrays are zero unless the condition, a boolean of shape [], holds."""
    return jax.tree.map(
        lambda leaf: jnp.where(condition, leaf, jnp.zeros_like(leaf)) if _is_inexact(leaf) else leaf, tree
    )


def _is_inexact(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact)) and leaf.size > 0


def _axes() -> list[Any]:
    names: Callable[[], list[Any]] = getattr(core, "unsafe_get_axis_names_DO_NOT_USE", list)
    return names()

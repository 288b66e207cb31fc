# SPDX-License-Identifier: Apache-2.0
"""Values and gradients under a loss scale, with the trees of any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from floatwise.errors import BadInputError
from floatwise.jax.dtypes import is_floating
from floatwise.jax.finite import AxisName, all_finite, largest_magnitude
from floatwise.jax.loss_scale import LossScale

__all__ = ["ScaledGradients", "combine", "partition", "value_and_grad"]


class ScaledGradients(NamedTuple):
    """What a loss function gave under a loss scale.

    Attributes:
      value: The loss, unscaled and in its own format; with `has_aux` the pair of it and the rest.
      grads: The gradients, unscaled. Where the parameters have a leaf that is not floating point there is None.
      finite: Whether all gradients are, a boolean of shape [].
      loss_scale: The loss scale for the next step.
    """

    value: Any
    grads: Any
    finite: jax.Array
    loss_scale: LossScale


def value_and_grad(
    fn: Callable[..., Any],
    loss_scale: LossScale,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    axis_name: AxisName = None,
) -> Callable[..., ScaledGradients]:
    """Returns a function that gives loss and gradients of `fn`, computed under a loss scale.

    As `jax.value_and_grad`, but parameters may have leaves of any kind (integers, functions), as in Equinox modules:
    gradients are taken of the floating ones.

    ```python
    @jax.jit
    def step(params, opt_state, loss_scale, batch):
        loss, grads, finite, loss_scale = fw.jax.value_and_grad(loss_fn, loss_scale)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)   # skip_if_not_finite(...)
        return fw.jax.apply_updates(params, updates), opt_state, loss_scale, loss
    ```

    Args:
      fn: A function that returns a loss of shape [], or with `has_aux` a pair of it and anything else. float16 losses
        are refused; see `LossScale.scale`.
      loss_scale: The scale of this step; inside `jit` an argument of the step.
      argnums: The arguments that gradients are taken of. Default: the first.
      has_aux: Whether `fn` returns a pair. Default: False.
      axis_name: Mapped axes over which the devices agree that a step is to be skipped. It averages nothing: where
        gradients have to be averaged, call `jax.lax.pmean` on `grads`.

    Raises:
      BadInputError: When called: the loss is float16, or an argument that gradients are taken of has no floating leaf.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def under_scale(*args: Any, **kwargs: Any) -> ScaledGradients:
        parts = [partition(args[number]) for number in numbers]
        for number, (floating, _) in zip(numbers, parts, strict=True):
            if not jax.tree.leaves(floating):
                raise BadInputError(
                    f"got no floating-point array in argument {number}, of which gradients are to be taken; "
                    "argnums says which arguments are the parameters"
                )

        def scaled(*floating: Any) -> tuple[Any, Any]:
            whole = list(args)
            for number, own, (_, rest) in zip(numbers, floating, parts, strict=True):
                whole[number] = combine(own, rest)
            result = fn(*whole, **kwargs)
            return loss_scale.scale(result[0] if has_aux else result), result

        places = tuple(range(len(numbers)))
        grads, value = jax.grad(scaled, places, has_aux=True)(*(floating for floating, _ in parts))
        grads = loss_scale.unscale(grads)
        finite = all_finite(grads, axis_name)
        loss = value[0] if has_aux else value
        moved = loss_scale.update(
            finite, largest_magnitude(grads, axis_name), loss_finite=all_finite(jnp.asarray(loss), axis_name)
        )
        return ScaledGradients(value, grads[0] if isinstance(argnums, int) else grads, finite, moved)

    return under_scale


def partition(tree: Any) -> tuple[Any, Any]:
    """Returns a tree with only its floating leaves and one with only the others; None stands for what is left out.

    What `equinox.partition(tree, equinox.is_inexact_array)` does, for trees of any library.
    """
    floating = jax.tree.map(lambda leaf: leaf if is_floating(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if is_floating(leaf) else leaf, tree)
    return floating, rest


def combine(floating: Any, rest: Any) -> Any:
    """Returns the tree that `partition` has parted."""
    return jax.tree.map(
        lambda own, other: other if own is None else own, floating, rest, is_leaf=lambda leaf: leaf is None
    )

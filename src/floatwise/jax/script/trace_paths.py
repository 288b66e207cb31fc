# SPDX-License-Identifier: Apache-2.0
"""Names of the parameters among a loss function's differentiated arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from floatwise.jax.paths import leaf_path

__all__ = ["argument_name", "parameter_paths"]

#: What Flax's nnx puts around the state of a module (`flax.nnx.extract.NodeStates`), and around a value.
_WRAPPING = frozenset({"_graphdef", "states", "value", "raw_value"})


def parameter_paths(fun: Callable[..., Any], argnums: Any, args: Sequence[Any]) -> list[str]:
    """Returns the path of every leaf of the differentiated arguments, in JAX's order.

    One argument gives paths within it (`Dense_0.kernel`, `layers.0.weight`); an array that is an argument itself has
    the argument's name, and several arguments put theirs in front.

    Args:
      fun: The function.
      argnums: As for `jax.grad`.
      args: Its positional arguments.
    """
    numbers = argnums if isinstance(argnums, Sequence) else (argnums,)
    paths = []
    for number in numbers:
        name = argument_name(fun, number, len(args))
        for keys, _ in jax.tree_util.tree_leaves_with_path(args[number]):
            path = leaf_path(_without_wrapping(keys))
            paths.append(".".join(part for part in (name if len(numbers) > 1 or not path else "", path) if part))
    return paths


def _without_wrapping(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the keys of an nnx state without what stands around it: `.states[0]['dense']['kernel'].value`."""
    names = [str(getattr(key, "name", "")) for key in keys]
    if "states" in names[:1]:
        keys, names = keys[2:], names[2:]
    while keys and names[-1] in _WRAPPING:
        keys, names = keys[:-1], names[:-1]
    return keys


def argument_name(fun: Callable[..., Any], number: Any, count: int) -> str:
    """Returns the name of a positional argument, the first of several.

    Args:
      fun: The function.
      number: Which argument, as for `jax.grad`.
      count: Positional arguments in all, for a number below 0.
    """
    number = number[0] if isinstance(number, Sequence) else number
    number = number if number >= 0 else number + count
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return f"argument_{number}"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return names[number] if number < len(names) else f"argument_{number}"

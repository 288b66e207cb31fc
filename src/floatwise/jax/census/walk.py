# SPDX-License-Identifier: Apache-2.0
"""Walking through a traced function, and finding the line of the user's code that an operation comes from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax

from floatwise.tap.frames import is_users_file

__all__ = [
    "Traced",
    "call_names",
    "function_name",
    "inner_jaxprs",
    "over_arrays",
    "trace",
    "user_line",
    "walk",
    "walk_jaxprs",
]

Traced = Any
"""An equation of a traced function (`jax.extend.core.JaxprEqn`)."""


def trace(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the closed jaxpr of `fn`, whose arguments may have leaves that are no arrays, as Equinox modules have.

    Args:
      fn: The function.
      args: Its arguments: arrays, or `jax.ShapeDtypeStruct` in their place.
      kwargs: Likewise.
    """
    of_arrays, arrays = over_arrays(fn, args, kwargs)
    return jax.make_jaxpr(of_arrays)(*arrays)


def over_arrays(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Returns `fn` as a function of the arrays among its arguments alone, and these arrays."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype") and hasattr(leaf, "shape")]

    def of_arrays(*arrays: Any) -> Any:
        whole = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            whole[place] = array
        inner_args, inner_kwargs = jax.tree.unflatten(structure, whole)
        return [leaf for leaf in jax.tree.leaves(fn(*inner_args, **inner_kwargs)) if hasattr(leaf, "dtype")]

    return of_arrays, [leaves[i] for i in places]


def walk(jaxpr: Any) -> Iterator[tuple[Traced, str, int]]:
    """Yields every equation of a jaxpr and of those inside it, with the user's `file:line` and how often it runs.

    An equation runs as often as the scans around it turn; in a `while` loop it counts once.
    """
    for level, lines, turns in _levels(jaxpr, "", 1):
        for equation, line in zip(level.eqns, lines, strict=True):
            yield equation, line, turns


def walk_jaxprs(jaxpr: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yields a jaxpr and those inside it, each with the user's `file:line` of its equations."""
    for level, lines, _ in _levels(jaxpr, "", 1):
        yield level, lines


def _levels(jaxpr: Any, caller: str, turns: int) -> Iterator[tuple[Any, list[str], int]]:
    """Yields a jaxpr and those inside it.

    A function of a library that was traced before keeps the lines of whoever called it first, so within one the line
    is that of the call: `caller`.
    """
    lines = [caller or user_line(equation) for equation in jaxpr.eqns]
    yield jaxpr, lines, turns
    for equation, line in zip(jaxpr.eqns, lines, strict=True):
        times = turns * equation.params["length"] if equation.primitive.name == "scan" else turns
        for inner in inner_jaxprs(equation):
            yield from _levels(inner, line if caller or not _is_users_function(inner) else "", times)


def inner_jaxprs(equation: Traced) -> Iterator[Any]:
    """Yields the open jaxprs among the parameters of an equation, in lists too."""
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


def user_line(equation: Traced) -> str:
    """Returns `file:line` of the innermost frame of an equation outside of libraries; empty when there is none."""
    for frame in _frames(equation):
        if is_users_file(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return ""


def call_names(equation: Traced) -> list[str]:
    """Returns the functions an equation was made in, innermost first, up to the user's own, as `package:name`."""
    names = []
    for frame in _frames(equation):
        if is_users_file(frame.file_name):
            break
        names.append(function_name(frame.file_name, frame.function_name))
    return names


def function_name(file_name: str, name: str) -> str:
    """Returns a function as `package:name`; without a package where its file is none's."""
    return f"{_package(file_name)}:{name}"


@cache
def _package(file_name: str) -> str:
    """Returns the installed package of a source file; empty when it is none's."""
    parts = Path(file_name).parts
    places = [i for i, part in enumerate(parts[:-1]) if part in ("site-packages", "dist-packages")]
    return parts[places[-1] + 1] if places else ""


def _frames(equation: Traced) -> list[Any]:
    traceback = equation.source_info.traceback
    return list(traceback.frames) if traceback is not None else []


def _is_users_function(jaxpr: Any) -> bool:
    """Returns whether the function of a jaxpr was written by the user: `name at file:line` says where."""
    info = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return is_users_file(info.rpartition(" at ")[2].rpartition(":")[0])

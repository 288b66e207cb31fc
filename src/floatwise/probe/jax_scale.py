# SPDX-License-Identifier: Apache-2.0
"""A loss scale that a script's library puts into its loss function."""

from __future__ import annotations

from typing import Any

__all__ = ["own_scale"]

#: The class that does so, and the variable of its wrapper that holds it (flax/training/dynamic_scale.py, 0.12).
_CLASS, _VARIABLE = "DynamicScale", "self"


def own_scale(fun: Any) -> Any:
    """Returns the scale that Flax's `DynamicScale.value_and_grad` multiplies a loss function with; None without it."""
    while fun is not None:
        code, cells = getattr(fun, "__code__", None), getattr(fun, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars if code is not None else (), cells, strict=False):
            if name == _VARIABLE and type(cell.cell_contents).__name__ == _CLASS:
                return cell.cell_contents.scale
        fun = getattr(fun, "__wrapped__", None)
    return None

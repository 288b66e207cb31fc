# SPDX-License-Identifier: Apache-2.0
"""A model's layers by the paths that a plan's globs speak of, and the plan's policy of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from floatwise.plan import Plan, Policy, match_module

__all__ = ["chosen_entries", "layer_paths", "unmatched_globs"]


def layer_paths(model: Any) -> dict[str, Any]:
    """Returns every layer of a model by its path, the model itself under the empty path first, parents before children.

    A path is the names of layers, from the outermost model's child to the layer, joined with dots: what
    `model.summary(expand_nested=True)` shows. It is not Keras' `layer.path`, which begins with the model's name for a
    Sequential or subclassed model and not for a functional one, changes when a file is loaded, and is missing before
    `build()`. Input layers have no path: they compute nothing. A layer that is used in several places has several; of
    siblings with one name the later ones get `_1`, `_2` behind it.
    """
    found: dict[str, Any] = {}
    for path, layer in _walk(model, "", ()):
        unique, number = path, 0
        while unique in found:
            number += 1
            unique = f"{path}_{number}"
        found[unique] = layer
    return found


def chosen_entries(plan: Plan, paths: dict[str, Any]) -> dict[str, tuple[Policy, str]]:
    """Returns the policy of each path and the glob it is from, empty for the plan's default.

    As in PyTorch's runtime an entry speaks of the modules it covers and of all inside them, unless a later entry covers
    one of those itself.
    """
    chosen: dict[str, tuple[Policy, str]] = {}
    for path in paths:
        own = next((entry for entry in reversed(plan.modules) if match_module(entry.module, path)), None)
        if own is not None:
            chosen[path] = own.policy, own.module
        else:
            chosen[path] = chosen[_parent(path, chosen)] if path else (plan.policy, "")
    return chosen


def unmatched_globs(plan: Plan, paths: dict[str, Any]) -> tuple[str, ...]:
    """Returns the plan's globs that cover no layer of the model."""
    return tuple(e.module for e in plan.modules if not any(match_module(e.module, path) for path in paths))


def _parent(path: str, known: dict[str, Any]) -> str:
    """Returns the nearest path above; a layer's own name may have dots in it."""
    above = path.rpartition(".")[0]
    while above not in known:
        above = above.rpartition(".")[0]
    return above


def _walk(layer: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    yield path, layer
    for child in layer._layers:
        if not isinstance(child, keras.layers.InputLayer) and id(child) not in above:
            yield from _walk(child, f"{path}.{child.name}" if path else child.name, (*above, id(layer)))

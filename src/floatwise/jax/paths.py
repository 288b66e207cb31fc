# SPDX-License-Identifier: Apache-2.0
"""Where a leaf stands in a tree of parameters, as a path of names, and which globs cover it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from floatwise.plan.match import ROOT, match_module

__all__ = ["covers", "leaf_path", "paths_around", "with_paths"]

# Flax's collections of variables that stand above the modules' own names (flax.linen, Module.init).
_COLLECTIONS = frozenset({"params", "batch_stats"})


def leaf_path(keys: tuple[Any, ...]) -> str:
    """Returns JAX's key path of a leaf as names joined with dots.

    Haiku's module names are split at their slashes, and Flax's outermost `params` or `batch_stats` is left out, so that
    `{"params": {"Dense_0": {"kernel": …}}}` gives `Dense_0.kernel`, as a plan names modules.
    """
    names = [name for key in keys for name in _name(key).split("/")]
    if len(names) > 1 and names[0] in _COLLECTIONS:
        del names[0]
    return ".".join(names)


def with_paths(tree: Any) -> list[tuple[str, Any]]:
    """Returns path and value of every leaf of a tree, in JAX's order."""
    return [(leaf_path(keys), leaf) for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def covers(glob: str, path: str) -> bool:
    """Returns whether a glob of `floatwise.plan.match` covers the leaf at `path`.

    It does when it matches the leaf's path or that of something around it. A glob of one name matches that name
    anywhere on the path, as in a `.gitignore`: `*norm*` covers `blocks.3.norm1.scale`.

    Raises:
      BadInputError: The glob is malformed.
    """
    if "." not in glob and glob not in ("", ROOT, "**"):
        return any(match_module(glob, name) for name in path.split("."))
    return any(match_module(glob, around) for around in paths_around(path))


def paths_around(path: str) -> Iterator[str]:
    """Yields a path and those around it, nearest first; the last is the empty one, the root."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):  # DictKey and FlattenedIndexKey, SequenceKey, GetAttrKey
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)

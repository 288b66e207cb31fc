# SPDX-License-Identifier: Apache-2.0
"""Seeds of a Keras script: set where it sets none, moved by an offset where it sets them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from floatwise.keras.script.importing import when_imported
from floatwise.keras.script.namespaces import in_all_namespaces
from floatwise.tap.execute import shift_seeds
from floatwise.tap.patches import Patches

__all__ = ["seed_keras"]


def seed_keras(patches: Patches, seed: int, offset: int) -> None:
    """Seeds the backends as soon as the script imports them; with an offset, moves the script's own seeds.

    JAX and Keras itself have no seed to set: layers without one draw theirs from Python's generator.

    Args:
      patches: Takes the replacements.
      seed: For what is not seeded by the script.
      offset: Added to every seed that the script gives; 0 leaves them.
    """
    when_imported(patches, "tensorflow", lambda: _seed_tensorflow(patches, seed + offset, offset))
    when_imported(patches, "torch", lambda: _seed_torch(patches, seed + offset, offset))
    if offset:
        when_imported(patches, "jax", lambda: _shift_jax(patches, offset))
        when_imported(patches, "keras", lambda: _shift_keras(patches, offset))


def _seed_tensorflow(patches: Patches, seed: int, offset: int) -> None:
    import tensorflow as tf

    tf.random.set_seed(seed)
    if offset:
        shift_seeds(patches, tf.random, "set_seed", offset)


def _seed_torch(patches: Patches, seed: int, offset: int) -> None:
    import torch

    torch.manual_seed(seed)
    if offset:
        shift_seeds(patches, torch, "manual_seed", offset)


def _shift_jax(patches: Patches, offset: int) -> None:
    import jax

    for name in ("key", "PRNGKey"):
        shift_seeds(patches, jax.random, name, offset)


def _shift_keras(patches: Patches, offset: int) -> None:
    import keras

    in_all_namespaces(patches, keras.utils.set_random_seed, lambda original: lambda seed: original(seed + offset))
    for owner in (keras.random.SeedGenerator, keras.src.initializers.random_initializers.RandomInitializer):
        patches.replace(owner, "__init__", functools.partial(_shifted_init, offset))


def _shifted_init(offset: int, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, seed: Any = None, *args: Any, **kwargs: Any) -> None:
        original(self, seed + offset if isinstance(seed, int) else seed, *args, **kwargs)

    return init

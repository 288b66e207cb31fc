# SPDX-License-Identifier: Apache-2.0
"""Arrays of Keras' JAX backend looked at: by callbacks from what is compiled, and in custom gradients."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from floatwise.probe.keras_watching import Hear
from floatwise.tap.patches import Patches

__all__ = ["JaxWatcher"]


class JaxWatcher:
    """See `floatwise.probe.keras_watching.Watcher`."""

    def __init__(self, patches: Patches, sampled: int | None) -> None:
        self._sampled = sampled
        self._here = threading.local()
        for name in ("value_and_grad", "grad", "vjp"):
            patches.replace(jax, name, self._differentiating)

    def is_training(self) -> bool:
        """Returns whether gradients will be taken of what is computed now."""
        return bool(getattr(self._here, "depth", 0))

    def is_floating(self, value: Any) -> bool:
        """Returns whether this is a dense array of floating point numbers that can be looked at."""
        return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jnp.floating))

    def look(self, tensor: Any, hear: Hear) -> None:
        """Looks at an array."""
        elements = int(tensor.size)

        def told(sample: Any, amax: Any) -> None:
            hear(np.asarray(sample), elements, float(amax))

        if elements:
            jax.debug.callback(told, *self._parts(tensor))

    def look_at_all(self, tensors: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None]) -> None:
        """Looks at several arrays at one time."""
        sizes = {name: int(tensor.size) for name, tensor in tensors.items()}

        def told(parts: Mapping[str, Any]) -> None:
            hear({n: (np.asarray(sample), sizes[n], float(amax)) for n, (sample, amax) in parts.items()})

        jax.debug.callback(told, {name: self._parts(tensor) for name, tensor in tensors.items() if sizes[name]})

    def pass_through(self, tensor: Any, hear: Hear, hear_gradient: Hear) -> Any:
        """Looks at an array and its gradient; returns one that is equal."""

        @jax.custom_vjp
        def same(value: Any) -> Any:
            return value

        def forward(value: Any) -> tuple[Any, None]:
            return value, None

        def backward(_: None, gradient: Any) -> tuple[Any]:
            self.look(gradient, hear_gradient)
            return (gradient,)

        same.defvjp(forward, backward)
        self.look(tensor, hear)
        return same(tensor)

    def _parts(self, tensor: Any) -> tuple[Any, Any]:
        tensor = jax.lax.stop_gradient(tensor)
        flat = jnp.reshape(tensor, (-1,))
        elements = flat.size
        most = self._sampled or elements
        stride = (elements // most) | 1 if elements > most else 1
        magnitudes = jnp.abs(flat)
        amax = jnp.max(jnp.where(jnp.isfinite(magnitudes), magnitudes, 0))
        return flat[::stride].astype(jnp.float32), amax.astype(jnp.float32)

    def _differentiating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            @functools.wraps(fun)
            def inside(*inputs: Any, **named: Any) -> Any:
                self._here.depth = getattr(self._here, "depth", 0) + 1
                try:
                    return fun(*inputs, **named)
                finally:
                    self._here.depth -= 1

            return original(inside, *args, **kwargs)

        return made

# SPDX-License-Identifier: Apache-2.0
"""Values handed over from inside JAX programs, without a change of what these compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from floatwise.jax.script.host_calls import device_number

__all__ = ["OF_FLOAT32", "Seen", "is_real", "tell", "watch"]

#: Magnitudes from here on come from the largest of float32, and would come from the largest of another dtype in its
#: place: Flax masks with `finfo.min`, JAX with 0.7 times that (jax.nn.dot_product_attention). They count as infinite.
OF_FLOAT32 = 1e38


class Seen:
    """One tensor as it is handed over.

    Attributes:
      sample: Some of its elements, or all, as float32.
      elements: Elements that it has.
      amax: Its largest finite magnitude; 0.0 where it has none.
    """

    def __init__(self, sample: Any, elements: int, amax: Any) -> None:
        self.sample, self.elements, self.amax = np.asarray(sample), elements, float(amax)


def is_real(value: Any) -> bool:
    """Returns whether a value is an array of floating numbers that has elements."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.floating)) and math.prod(value.shape) > 0


def tell(
    receive: Callable[[int, Any, list[Seen]], None], scalar: Any, tensors: Sequence[Any], most: int | None
) -> None:
    """Calls `receive` with a scalar and tensors, each time the program computes them.

    Under `vmap` it is called once, with the mean of the scalars and the whole tensors; under `pmap` and `shard_map`
    on the first device alone. What is handed over is not differentiated.

    Args:
      receive: Gets the number of examples mapped over (1 without `vmap`), the scalar, and the tensors; called in any
        thread.
      scalar: A number of shape [].
      tensors: Floating arrays of any shapes.
      most: Elements handed over per tensor at most, evenly strided; None for all.
    """

    def call(size: int, device: Any, scalar: Any, tensors: Sequence[Any]) -> None:
        counts = [math.prod(tensor.shape) for tensor in tensors]

        def host(device: Any, scalar: Any, *given: Any) -> None:
            if not np.min(device):
                pairs = zip(given[::2], counts, given[1::2], strict=True)
                receive(size, scalar, [Seen(sample, count, amax) for sample, count, amax in pairs])

        jax.debug.callback(host, device, scalar, *(part for tensor in tensors for part in _parts(tensor, most)))

    _mapped(call, 1)(device_number(), *map(jax.lax.stop_gradient, (scalar, *tensors)))


def _mapped(call: Callable[..., None], size: int) -> Any:
    """Returns a function that calls `call` once however often it is mapped over."""

    @custom_vmap
    def once(device: Any, scalar: Any, *tensors: Any) -> tuple[()]:
        call(size, device, scalar, tensors)
        return ()

    @once.def_vmap
    def mapped(count: int, batched: Sequence[bool], device: Any, scalar: Any, *tensors: Any) -> Any:
        device = jnp.min(device, axis=0) if batched[0] else device
        scalar = jnp.mean(scalar, axis=0) if batched[1] else scalar
        _mapped(call, size * count)(device, scalar, *tensors)
        return (), ()

    return once


def watch(
    value: Any,
    receive: Callable[[int, Any, list[Seen]], None],
    backward: Callable[[int, Any, list[Seen]], None],
    most: int | None,
) -> Any:
    """Returns `value` as it is, handed over when it is computed and when its gradient is.

    Args:
      value: A floating array.
      receive: As for `tell`, for the value.
      backward: Likewise for the gradient.
      most: Elements handed over at most; None for all.
    """

    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x

    def ahead(x: Any) -> tuple[Any, None]:
        return x, None

    def back(_: None, gradient: Any) -> tuple[Any]:
        tell(backward, 0.0, [gradient], most)
        return (gradient,)

    identity.defvjp(ahead, back)
    tell(receive, 0.0, [value], most)
    return identity(value)


def _parts(tensor: Any, most: int | None) -> tuple[Any, Any]:
    flat = jnp.reshape(tensor, -1)
    flat = flat.astype(jnp.float32) if flat.dtype != jnp.float64 else flat
    magnitudes = jnp.abs(flat)
    flat = jnp.where(magnitudes < OF_FLOAT32, flat, jnp.where(jnp.isnan(flat), flat, jnp.inf * jnp.sign(flat)))
    amax = jnp.max(jnp.where(magnitudes < OF_FLOAT32, magnitudes, 0)).astype(jnp.float32)
    # An odd stride does not fall in step with power-of-two rows and see one column only.
    stride = (flat.size // most) | 1 if most is not None and flat.size > most else 1
    return flat[::stride].astype(jnp.float32), amax

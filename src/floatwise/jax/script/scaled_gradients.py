# SPDX-License-Identifier: Apache-2.0
"""A loss scale around the gradients of a script that knows of none: it moves on the host, step by step."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from floatwise.jax.finite import all_finite, largest_magnitude
from floatwise.jax.loss_scale import LossScale
from floatwise.jax.scale_report import LossScaleReport
from floatwise.jax.script.gradient_reports import GradientReports
from floatwise.jax.script.gradient_tap import Call
from floatwise.jax.script.host_calls import agreed, device_number, host_function, pass_if, witness_of
from floatwise.plan import LossScale as Settings

__all__ = ["ScaledGradients"]

_jit = jax.jit  # before a script's calls of it are followed


class ScaledGradients:
    """Differentiates a loss times the scale, and divides the gradients by it again.

    The scale is read when a gradient begins and the finding is handed back when it ends, both by calls of this process
    from inside the compiled step, so that one compiled step follows the scale. Forward and backward pass of one
    gradient use the same value; a read waits for the parameters, which wait for the last finding.

    Where a gradient is not finite, the script gets zeros in place of all gradients of that step, and the step counts as
    skipped. An optimizer that remembers (momentum, Adam) still takes a small step from what it remembers, and decays
    it; weight decay goes on. A script that uses `floatwise.jax.LossScale` and `skip_if_not_finite` skips to the bit.

    Args:
      settings: The plan's `[loss_scale]`.
      reports: Told of every gradient.
    """

    def __init__(self, settings: Settings, reports: GradientReports) -> None:
        self._settings = settings
        self._state: Any = None
        self._lock = threading.Lock()
        self._reports = reports
        self._read: Any = None
        self._writers: dict[Hashable, Callable[..., Any]] = {}
        self._opened: weakref.WeakKeyDictionary[Call, LossScale] = weakref.WeakKeyDictionary()

    def scaled(self, call: Call, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with a derivative that is larger by the scale; its results are those of `fun`."""
        self._begin()
        self._reports.host_called()
        loss_scale = self._unpacked(self._read(witness_of(call.params)))
        self._opened[call] = loss_scale

        def of_scaled(*args: Any, **kwargs: Any) -> Any:
            results = fun(*args, **kwargs)
            loss, *auxiliary = results if isinstance(results, tuple) else (results,)
            # A float16 loss cannot carry the scale: it is multiplied where the loss leaves float32 for it.
            loss = _with_larger_tangent(jnp.asarray(loss), loss_scale.value)
            return (loss, *auxiliary) if isinstance(results, tuple) else loss

        return of_scaled

    def _begin(self) -> None:
        """Makes the scale in the first gradient: a script may set JAX's platform, devices and processes until then."""
        with self._lock:
            if self._read is not None:
                return
            with jax.ensure_compile_time_eval():
                first = LossScale.from_settings(self._settings)
                self._structure = jax.tree.structure(first)
                self._dtypes = [leaf.dtype for leaf in jax.tree.leaves(first)]
                self._state = np.asarray(_packed(first))
                self._read = self._reader()

    def unscaled(self, call: Call, loss: Any, grads: Any) -> Any:
        """Returns the gradients divided by the scale, or zeros where one is not finite; moves the scale."""
        loss_scale = self._opened.pop(call)
        grads = jax.tree.map(lambda grad: _divided(grad, loss_scale), grads)
        return pass_if(self._noted(call.key, loss_scale, loss, grads), grads)

    def report(self) -> LossScaleReport:
        """Returns the scale and what it has seen so far; may be called where JAX may not compute."""
        self._begin()
        with self._lock:
            state = self._state
        leaves = [
            state[i].view(dtype) if dtype == np.float32 else state[i].astype(dtype)
            for i, dtype in enumerate(self._dtypes)
        ]
        seen: LossScale = jax.tree.unflatten(self._structure, leaves)
        return seen.report()

    def _reader(self) -> Callable[..., Any]:
        def host(witness: Any) -> Any:
            with self._lock:
                return self._state

        shape = jax.ShapeDtypeStruct(self._state.shape, self._state.dtype)  # type: ignore[no-untyped-call]
        return host_function(host, shape, [jnp.max])

    def _writer(self, key: Hashable) -> Callable[..., Any]:
        def prepare(finite: Any, loss_finite: Any, largest: Any, packed: Any, loss: Any, device: Any) -> Any:
            after = self._unpacked(packed).update(finite > 0, largest, loss_finite=loss_finite > 0)
            return _packed(after), finite, loss, device

        def host(after: Any, finite: Any, loss: Any, device: Any) -> np.bool_:
            if not int(device):
                with self._lock:
                    self._state = np.asarray(after)
                self._reports.called(key, float(loss))
            return np.bool_(finite)

        result = jax.ShapeDtypeStruct((), bool)  # type: ignore[no-untyped-call]
        merges = (jnp.min, jnp.min, jnp.max, jnp.max, jnp.mean, jnp.min)
        return host_function(host, result, merges, _jit(prepare))

    def _noted(self, key: Hashable, before: LossScale, loss: Any, grads: Any) -> Any:
        """Hands the scale after this gradient to the host; returns whether all gradients were finite.

        The findings of several devices are merged, and of examples under `vmap`: one spoils the step for all.
        """
        real = [part for leaf in jax.tree.leaves(grads) for part in _real_parts(leaf)]
        values = (
            agreed(all_finite(real).astype(jnp.int32), jax.lax.pmin),
            agreed(jnp.isfinite(loss).astype(jnp.int32), jax.lax.pmin),
            agreed(largest_magnitude(real), jax.lax.pmax),
            _packed(before),
            loss,
            device_number(),
        )
        if key not in self._writers:
            self._writers[key] = self._writer(key)
        return self._writers[key](*values)

    def _unpacked(self, packed: Any) -> LossScale:
        leaves = [_from_bits(packed[i], dtype) for i, dtype in enumerate(self._dtypes)]
        unpacked: LossScale = jax.tree.unflatten(self._structure, leaves)
        return unpacked


@jax.custom_jvp
def _with_larger_tangent(loss: Any, scale: Any) -> Any:
    return loss


_with_larger_tangent.defjvps(lambda tangent, out, loss, scale: (tangent * scale).astype(tangent.dtype), None)


def _divided(grad: Any, loss_scale: LossScale) -> Any:
    if not hasattr(grad, "dtype") or not jnp.issubdtype(grad.dtype, jnp.inexact):
        return grad
    if jnp.issubdtype(grad.dtype, jnp.complexfloating):
        return jax.lax.complex(_divided(grad.real, loss_scale), _divided(grad.imag, loss_scale))
    return loss_scale.unscale(grad).astype(grad.dtype)


def _real_parts(leaf: Any) -> tuple[Any, ...]:
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return leaf.real, leaf.imag
    return (leaf,)


def _packed(loss_scale: LossScale) -> Any:
    """Returns a loss scale as one int32 array: one call carries it to the host and back."""
    return jnp.stack([_bits(leaf) for leaf in jax.tree.leaves(loss_scale)])


def _bits(leaf: Any) -> Any:
    if leaf.dtype == jnp.float32:
        return jax.lax.bitcast_convert_type(leaf, jnp.int32)
    return leaf.astype(jnp.int32)


def _from_bits(bits: Any, dtype: Any) -> Any:
    return jax.lax.bitcast_convert_type(bits, dtype) if dtype == jnp.float32 else bits.astype(dtype)

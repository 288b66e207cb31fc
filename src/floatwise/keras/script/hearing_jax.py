# SPDX-License-Identifier: Apache-2.0
"""The JAX backend's losses and steps: eager and in jitted functions."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from floatwise.tap.patches import Patches

__all__ = ["HearingJax", "hear_gradients"]


class HearingJax:
    """Tells of steps; see `floatwise.keras.script.iterations`.

    Args:
      patches: Undo it.
      iterations: Is told.
    """

    def __init__(self, patches: Patches, iterations: Any) -> None:
        from keras.src.backend.jax.trainer import JAXTrainer

        self.trainer = JAXTrainer
        self._iterations = iterations
        self._pending: list[Any] = []

    def lost(self, loss: Any) -> None:
        """Keeps a loss for the step to come, and has it told where that step is in another function."""
        if isinstance(loss, jax.core.Tracer):
            self._pending.append(loss)
            jax.debug.callback(lambda value: self._iterations.lost(float(value)), _scalar(loss))
        else:
            self._iterations.lost(self.number(loss))

    def applied(self, key: Hashable, result: Any) -> None:
        """An optimizer's `apply` or `stateless_apply` has returned."""
        pending, self._pending = self._pending, []
        if _is_eager():
            jax.block_until_ready(result)  # type: ignore[no-untyped-call]
            jax.effects_barrier()  # type: ignore[no-untyped-call]
            self._iterations.stepped(key)
            return
        total = self.total(pending)
        jax.debug.callback(
            lambda loss: self._iterations.stepped(key, float(loss)), jnp.float32(math.nan) if total is None else total
        )

    def total(self, losses: list[Any]) -> Any:
        """Returns the sum of the losses that may be used here, None for none."""
        usable = [_scalar(loss) for loss in losses if _is_in_reach(loss)]
        return functools.reduce(lambda a, b: a + b, usable) if usable else None

    def split(self, returned: Any) -> tuple[Any, Any]:
        """Returns a train function's logs and its state."""
        logs, state = returned
        return logs, state

    def joined(self, logs: Any, rest: Any) -> Any:
        """Returns what `split` has split."""
        return logs, rest

    def wait(self, returned: Any) -> None:
        """Waits for the device."""
        jax.block_until_ready(returned)  # type: ignore[no-untyped-call]
        jax.effects_barrier()  # type: ignore[no-untyped-call]

    def number(self, loss: Any) -> float:
        """Returns a loss as a number."""
        return float(np.sum(np.asarray(loss, dtype=np.float64)))


#: Further parameters of `jax.grad` and `jax.value_and_grad`, which may stand by position (jax/_src/api.py, 0.10).
_REST = ("holomorphic", "allow_int", "reduce_axes")


def hear_gradients(patches: Patches, iterations: Any) -> None:
    """Replaces `jax.value_and_grad` and `jax.grad`; where no loss was scaled they compute what they did."""
    nested = threading.local()
    plain = jax.value_and_grad

    def differentiating(fun: Callable[..., Any], argnums: Any, has_aux: bool, kwargs: Any) -> Callable[..., Any]:
        @functools.wraps(fun)
        def kept(*args: Any, **kw: Any) -> Any:
            value, aux = fun(*args, **kw) if has_aux else (fun(*args, **kw), None)
            return value, (aux, iterations.unscaled(value))

        inner = plain(kept, argnums, has_aux=True, **kwargs)

        def run(*args: Any, **kw: Any) -> Any:
            depth = getattr(nested, "depth", 0)
            nested.depth = depth + 1
            try:
                (value, (aux, unscaled)), gradients = inner(*args, **kw)
            finally:
                nested.depth = depth
            if not depth:
                iterations.heard(value if unscaled is None else unscaled)
            return value, aux, gradients

        return run

    def value_and_grad(_: Any) -> Callable[..., Any]:
        @functools.wraps(plain)
        def made(fun: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, *rest: Any, **kwargs: Any) -> Any:
            run = differentiating(fun, argnums, has_aux, {**dict(zip(_REST, rest, strict=False)), **kwargs})

            @functools.wraps(fun)
            def called(*args: Any, **kw: Any) -> Any:
                value, aux, gradients = run(*args, **kw)
                return ((value, aux) if has_aux else value), gradients

            return called

        return made

    def grad(original: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(fun: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, *rest: Any, **kwargs: Any) -> Any:
            run = differentiating(fun, argnums, has_aux, {**dict(zip(_REST, rest, strict=False)), **kwargs})

            @functools.wraps(fun)
            def called(*args: Any, **kw: Any) -> Any:
                _, aux, gradients = run(*args, **kw)
                return (gradients, aux) if has_aux else gradients

            return called

        return made

    patches.replace(jax, "value_and_grad", value_and_grad)
    patches.replace(jax, "grad", grad)


def _scalar(loss: Any) -> Any:
    return jnp.sum(jnp.asarray(loss, jnp.float32))


def _is_eager() -> bool:
    from jax._src import core

    return bool(core.trace_state_clean())


def _is_in_reach(loss: Any) -> bool:
    """Returns whether a value may be used in the function that is being traced now."""
    from jax._src import core

    return not isinstance(loss, jax.core.Tracer) or loss._trace is core.trace_ctx.trace

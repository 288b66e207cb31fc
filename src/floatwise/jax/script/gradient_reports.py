# SPDX-License-Identifier: Apache-2.0
"""Tells this process of every gradient that a script has computed, at no cost to the compiled step."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from floatwise.jax.script.host_calls import device_number, host_function, is_traced, witness_of
from floatwise.tap.patches import Patches

__all__ = ["GradientReports", "OnGradient", "OnTrainingCall"]

OnTrainingCall = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], None]
"""Gets a compiled function that takes gradients, and the arguments of a call."""

OnGradient = Callable[[Hashable, float], None]
"""Gets what names the loss function, and the loss, in any thread."""

#: What a compiled function can do besides being called (jax.stages.Wrapped, and PjitFunction's own).
_METHODS = ("lower", "trace", "eval_shape", "clear_cache", "_cache_size")


class GradientReports:
    """Reports gradients and changes none.

    A function that the script compiles with `jax.jit` returns its losses beside its results, and the script does not
    see them. A call of the host from inside would cost more: JAX 0.10 dispatches a program with effects in Python,
    array by array. Only where a gradient is not at the compiled function's own level (in `scan`, `vmap`, `pmap`) the
    host is called. The gradients go on to the update as they are in either case: whatever holds them up, a barrier or a
    select, keeps XLA from fusing the update with what computes them, and changes last bits.

    Args:
      on_gradient: Gets what names the loss function, and the loss; under `vmap` the mean loss, of several devices the
        first one's.
      waits: Whether a compiled call that takes gradients returns when all is computed, so that a step can be timed,
        update included. Several gradients of one loss in one call (a `scan` over training steps) are reported from
        inside, where the update of the last may still be under way. Without it JAX computes on, and reports may come
        late.
      on_training_call: Gets every compiled function that takes gradients, with its arguments, after it was called;
        arrays that were donated are deleted by then. Default: none.
    """

    def __init__(
        self, on_gradient: OnGradient, *, waits: bool = False, on_training_call: OnTrainingCall | None = None
    ) -> None:
        self._on_gradient, self._waits, self._on_training_call = on_gradient, waits, on_training_call
        self._local = threading.local()
        self._lock = threading.Lock()
        self._late: deque[tuple[Hashable, Any]] = deque()
        self._hosts: dict[Hashable, Callable[..., Any]] = {}
        self._host_calls = 0  # traced so far
        self._calling: dict[int, Any] = {}  # functions that have such, by address, kept so that it stays their own
        self._active = 0
        self._several = False
        self._ended: list[tuple[Hashable, float]] = []

    def install(self, patches: Patches) -> None:
        """Replaces `jax.jit` and `jax.pmap`."""
        patches.replace(jax, "jit", lambda original: self._replaced(original, self._with_losses(original)))
        patches.replace(jax, "pmap", lambda original: self._replaced(original, None))

    def report(self, key: Hashable, loss: Any, grads: Any) -> None:
        """Has a gradient reported: at once where it is computed, whenever it will be where it is traced.

        Args:
          key: Names the loss function.
          loss: The loss, of shape [].
          grads: The gradients, a tree.
        """
        if not is_traced((loss, grads)):
            if self._waits:
                jax.block_until_ready(grads)  # type: ignore[no-untyped-call]
            self._take(key, loss)
        elif self._is_own_level():
            self._local.levels[-1][1].append((key, loss))
        else:
            self._call_host(key, loss, grads)

    def called(self, key: Hashable, loss: float) -> None:
        """Takes the report of a gradient from inside a compiled call, in any thread."""
        with self._lock:
            self._several |= any(other == key for other, _ in self._ended)
            if self._waits and self._active and not self._several:
                self._ended.append((key, loss))
                return
            ended, self._ended = [*self._ended, (key, loss)], []
        for each in ended:
            self._on_gradient(*each)

    def host_called(self) -> None:
        """Tells that a call of the host was traced: what it is in has to be waited for."""
        self._host_calls += 1

    def settle(self) -> None:
        """Waits for all that is still under way."""
        jax.effects_barrier()  # type: ignore[no-untyped-call]
        self._drain(wait=True)

    def _call_host(self, key: Hashable, loss: Any, grads: Any) -> None:
        self.host_called()
        if key not in self._hosts:

            def host(loss: Any, witness: Any, device: Any) -> np.bool_:
                if not int(device):
                    self.called(key, float(loss))
                return np.True_

            result = jax.ShapeDtypeStruct((), bool)  # type: ignore[no-untyped-call]
            self._hosts[key] = host_function(host, result, (jnp.mean, jnp.max, jnp.min))
        self._hosts[key](loss, witness_of(grads), device_number())

    def _take(self, key: Hashable, loss: Any) -> None:
        if self._waits:
            self._on_gradient(key, float(loss))
            return
        self._late.append((key, loss))
        self._drain(wait=False)

    def _drain(self, *, wait: bool) -> None:
        while self._late and (wait or self._late[0][1].is_ready()):
            key, loss = self._late.popleft()
            self._on_gradient(key, float(loss))

    def _is_own_level(self) -> bool:
        levels = getattr(self._local, "levels", [])
        return bool(levels) and levels[-1][0] == _trace()

    def _replaced(
        self, original: Callable[..., Any], make: Callable[..., Callable[..., Any] | None] | None
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile_function(*args: Any, **kwargs: Any) -> Any:
            if not args and "fun" not in kwargs:  # a decorator is asked for (JAX 0.8 and later)
                return lambda fun: compile_function(fun, **kwargs)
            fun = args[0] if args else kwargs["fun"]
            plain = original(*args, **kwargs)
            with_losses = make(fun, *args[1:], **{k: v for k, v in kwargs.items() if k != "fun"}) if make else None
            return self._followed(plain, with_losses, fun)

        return compile_function

    def _with_losses(self, jit: Callable[..., Any]) -> Callable[..., Callable[..., Any] | None]:
        def make(fun: Any, *args: Any, **kwargs: Any) -> Callable[..., Any] | None:
            if args:
                return None
            # One function makes one, kept with it, as JAX keeps compiled programs by function.
            owner, of, made = getattr(fun, "__dict__", {}).get("_floatwise_with_losses", (None, None, None))
            if owner is not self or of is not fun:  # `functools.wraps` copies it to what a function was wrapped in

                @functools.wraps(fun)
                def made(*args: Any, **kwargs: Any) -> Any:
                    with self._level() as losses:
                        results = fun(*args, **kwargs)
                    return results, _Losses(losses)

                try:
                    fun._floatwise_with_losses = self, fun, made
                except (AttributeError, TypeError):
                    return None
            if "out_shardings" in kwargs:
                kwargs["out_shardings"] = (kwargs["out_shardings"], None)
            compiled: Callable[..., Any] = jit(made, **kwargs)
            return compiled

        return make

    @contextmanager
    def _level(self) -> Iterator[list[tuple[Hashable, Any]]]:
        losses: list[tuple[Hashable, Any]] = []
        levels = self._local.__dict__.setdefault("levels", [])
        levels.append((_trace(), losses))
        try:
            yield losses
        finally:
            levels.pop()

    def _followed(
        self, plain: Callable[..., Any], with_losses: Callable[..., Any] | None, fun: Any
    ) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._host_calls
            self._enter()
            try:
                if with_losses is None:
                    results, losses = plain(*args, **kwargs), _Losses([])
                else:
                    results, losses = with_losses(*args, **kwargs)
                if self._host_calls != before:
                    self._calling[id(fun)] = fun
                if self._waits and (losses.pairs or id(fun) in self._calling) and not is_traced(results):
                    jax.block_until_ready(results)  # type: ignore[no-untyped-call]
                    if id(fun) in self._calling:
                        jax.effects_barrier()  # type: ignore[no-untyped-call]
                is_training = bool(losses.pairs) or id(fun) in self._calling
                if is_training and self._on_training_call is not None and not is_traced(results):
                    self._on_training_call(plain if with_losses is None else with_losses, args, kwargs)
            finally:
                self._leave()
            for key, loss in losses.pairs:
                self.report(key, loss, loss)
            return results

        for name in _METHODS:
            if hasattr(plain, name):
                setattr(call, name, getattr(plain, name))
        return call

    def _enter(self) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + 1
        if self._local.depth == 1:
            with self._lock:
                self._active += 1

    def _leave(self) -> None:
        self._local.depth -= 1
        if self._local.depth:
            return
        with self._lock:
            self._active -= 1
            ended, self._ended = self._ended, []
        for each in ended:
            self._on_gradient(*each)


def _trace() -> Any:
    """Returns what tells one trace from another."""
    return core.get_opaque_trace_state(convention="flax")  # type: ignore[no-untyped-call]


class _Losses:
    """Losses and what names each, as JAX returns them from a compiled function: the names are of its structure."""

    def __init__(self, pairs: Sequence[tuple[Hashable, Any]]) -> None:
        self.pairs = tuple(pairs)


jax.tree_util.register_pytree_node(
    _Losses,
    lambda losses: (tuple(loss for _, loss in losses.pairs), tuple(key for key, _ in losses.pairs)),
    lambda keys, losses: _Losses(tuple(zip(keys, losses, strict=True))),
)

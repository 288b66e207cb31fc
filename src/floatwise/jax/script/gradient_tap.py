# SPDX-License-Identifier: Apache-2.0
"""Every gradient that a script takes: `jax.grad` and `jax.value_and_grad` replaced before it starts."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import api as jax_api

from floatwise.tap.frames import is_users_file, users_line
from floatwise.tap.patches import Patches

__all__ = ["Call", "GradientListener", "GradientTap"]

#: The function that `jax.value_and_grad` returns, and `jax.grad` calls, and what it holds (jax/_src/api.py, 0.10).
_MADE = "value_and_grad_f"
_NAMES = frozenset({"fun", "argnums", "args", "kwargs", "holomorphic"})


class Call:
    """One call of a differentiated function, eager or while it is traced.

    Attributes:
      key: Names the function by where its code is, so that the same loss of a later iteration has the same key, and
        two losses of one script (of a GAN) have two.
      fun: The function as the script gave it.
      argnums: Its differentiated arguments, as given.
      args: The positional arguments of this call.
      params: The differentiated arguments: one, or a tuple where `argnums` is a sequence.
      taken: How many gradients the tap had handed over before.
      kept: What the listener keeps from `loss_function` for `gradients`; None at first.
    """

    def __init__(self, key: Hashable, fun: Callable[..., Any], argnums: Any, args: tuple[Any, ...], taken: int) -> None:
        self.key, self.fun, self.argnums, self.args, self.taken = key, fun, argnums, args, taken
        self.kept: Any = None

    @property
    def params(self) -> Any:
        """The differentiated arguments."""
        if isinstance(self.argnums, Sequence):
            return tuple(self.args[number] for number in self.argnums)
        return self.args[self.argnums]


class GradientListener:
    """What a tap tells, and asks; each method here leaves things as they are.

    Both methods run while JAX traces (`jit`, `vmap`, `scan`), or eagerly: values may be tracers.
    """

    def loss_function(self, call: Call) -> Callable[..., Any]:
        """Returns the function that is differentiated in place of `call.fun`, of the same signature and results."""
        return call.fun

    def gradients(self, call: Call, loss: Any, grads: Any) -> Any:
        """Gets the loss (without auxiliary data) and the gradients; returns the gradients that the script gets.

        May insert `jax.debug.callback`.
        """
        return grads


class GradientTap:
    """Replaces `jax.value_and_grad` and `jax.grad`, through which optax, Flax nnx, Equinox, Haiku and Keras go too.

    Signatures, errors and auxiliary data stay those of JAX; results are the same bit for bit while the listener
    changes nothing. A gradient taken while a differentiated function is computed (a gradient within a gradient) is
    JAX's own, and so is a holomorphic one. `jax.vjp`, `jax.jacrev` and what libraries take from JAX's inside are not
    seen.

    Args:
      patches: Undoing these takes the tap out.
      listener: Gets every gradient.
      made_before: Sees the functions, too, that `jax.grad` and `jax.value_and_grad` made before the tap was put in.
        Default: False, for a tap that comes before the script.
    """

    def __init__(self, patches: Patches, listener: GradientListener, made_before: bool = False) -> None:
        self.calls = 0
        """Gradients handed over so far; under `jit`, each traced one counts once."""
        self._listener = listener
        self._state = threading.local()
        patches.replace(jax, "value_and_grad", self._replaced)
        patches.replace(jax, "grad", lambda original: self._replaced_grad(original, jax.value_and_grad))
        if made_before and hasattr(jax_api, "vjp"):
            patches.replace(jax_api, "vjp", self._replaced_vjp)

    def _replaced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def value_and_grad(
            fun: Callable[..., Any],
            argnums: Any = 0,
            has_aux: bool = False,
            holomorphic: bool = False,
            allow_int: bool = False,
            reduce_axes: Sequence[Any] = (),
        ) -> Callable[..., Any]:
            rest = {"has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
            plain: Callable[..., Any]
            plain = original(fun, argnums, **rest, **({"reduce_axes": reduce_axes} if reduce_axes else {}))
            if holomorphic:
                return plain

            @functools.wraps(plain)
            def value_and_grad_f(*args: Any, **kwargs: Any) -> Any:
                if self._is_inside or not _has_all(argnums, args):
                    with self._in_ours():
                        return plain(*args, **kwargs)
                call = Call(_key(fun), fun, argnums, args, self.calls)
                differentiated = self._entered(self._listener.loss_function(call), fun)
                with self._in_ours():
                    value, grads = original(differentiated, argnums, **rest)(*args, **kwargs)
                self.calls += 1
                return value, self._listener.gradients(call, value[0] if has_aux else value, grads)

            return value_and_grad_f

        return value_and_grad

    def _replaced_grad(self, original: Callable[..., Any], value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def grad(
            fun: Callable[..., Any],
            argnums: Any = 0,
            has_aux: bool = False,
            holomorphic: bool = False,
            allow_int: bool = False,
            reduce_axes: Sequence[Any] = (),
        ) -> Callable[..., Any]:
            rest = {"has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
            plain = original(fun, argnums, **rest, **({"reduce_axes": reduce_axes} if reduce_axes else {}))
            both = value_and_grad(fun, argnums, **rest)

            @functools.wraps(plain)
            def grad_f(*args: Any, **kwargs: Any) -> Any:
                value, grads = both(*args, **kwargs)
                return (grads, value[1]) if has_aux else grads

            return grad_f

        return grad

    def _replaced_vjp(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Sees the functions that JAX made before, by the `vjp` that they call, with what they hold."""

        @functools.wraps(original)
        def vjp(fun: Any, *primals: Any, **options: Any) -> Any:
            made = sys._getframe(1).f_locals if sys._getframe(1).f_code.co_name == _MADE else {}
            if self._is_inside or self._is_in_ours or not _NAMES <= set(made) or made["holomorphic"]:
                return original(fun, *primals, **options)
            script, argnums, args, kwargs = (made[name] for name in ("fun", "argnums", "args", "kwargs"))
            call = Call(_key(script), script, argnums, args, self.calls)
            differentiated = self._entered(self._listener.loss_function(call), script)
            numbers = [n % len(args) for n in (argnums if isinstance(argnums, Sequence) else (argnums,))]

            def of_primals(*given: Any) -> Any:
                whole = list(args)
                for number, value in zip(numbers, given, strict=True):
                    whole[number] = value
                return differentiated(*whole, **kwargs)

            loss, back, *aux = original(of_primals, *primals, **options)
            self.calls += 1

            def gradients(cotangent: Any) -> Any:
                grads = back(cotangent)
                if isinstance(argnums, Sequence):
                    return self._listener.gradients(call, loss, grads)
                return (self._listener.gradients(call, loss, grads[0]),)

            return loss, gradients, *aux

        return vjp

    @property
    def _is_in_ours(self) -> bool:
        return bool(getattr(self._state, "ours", 0))

    @contextmanager
    def _in_ours(self) -> Iterator[None]:
        self._state.ours = getattr(self._state, "ours", 0) + 1
        try:
            yield
        finally:
            self._state.ours -= 1

    @property
    def _is_inside(self) -> bool:
        return bool(getattr(self._state, "depth", 0))

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._state.depth = getattr(self._state, "depth", 0) + 1
        try:
            yield
        finally:
            self._state.depth -= 1

    def _entered(self, differentiated: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fun)
        def of_script(*args: Any, **kwargs: Any) -> Any:
            with self._inside():
                return differentiated(*args, **kwargs)

        return of_script


def _has_all(argnums: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether JAX will find the arguments to differentiate; where not, it says so itself."""
    numbers = argnums if isinstance(argnums, Sequence) else (argnums,)
    return bool(args) and all(-len(args) <= number < len(args) for number in numbers)


def _key(fun: Callable[..., Any]) -> Hashable:
    code = _code(fun)
    place = (code.co_filename, code.co_firstlineno, code.co_name) if code is not None else (type(fun).__qualname__,)
    # A library's own function wraps any loss: then the line that asks for the gradient tells them apart.
    return place if code is not None and is_users_file(code.co_filename) else (*place, users_line())


def _code(fun: Any) -> Any:
    while isinstance(fun, functools.partial):
        fun = fun.func
    fun = inspect.unwrap(fun)
    while isinstance(fun, functools.partial):
        fun = fun.func
    code = getattr(getattr(fun, "__func__", fun), "__code__", None)
    return code if code is not None else getattr(vars(type(fun)).get("__call__"), "__code__", None)

# SPDX-License-Identifier: Apache-2.0
"""Records what a JAX script differentiates: a listener of the gradient tap that rewrites its loss functions."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from floatwise.jax.script.gradient_tap import Call, GradientListener
from floatwise.jax.script.rewriting import Equation, Evaluate, Program, evaluate_program, is_array, rewrite
from floatwise.jax.script.trace_paths import argument_name, parameter_paths
from floatwise.probe.jax_barrier import behind
from floatwise.probe.jax_flow import Flow, Taps
from floatwise.probe.jax_products import PRODUCTS
from floatwise.probe.jax_scale import own_scale
from floatwise.probe.jax_sites import SiteBook
from floatwise.probe.jax_taps import Seen, is_real, tell, watch
from floatwise.probe.recording import Site
from floatwise.probe.value_log import ValueLog

__all__ = ["JaxRecorder"]

#: What the script prints while it computes, and would print twice (`jax.debug`).
_SCRIPTS_OWN = frozenset({"debug_callback", "debug_print"})
#: Effects of what may not be computed twice (`jax.experimental.io_callback`).
_ONCE = frozenset({"IOEffect", "OrderedIOEffect"})


class JaxRecorder(GradientListener):
    """Hands over the values of the products of every loss function, and every gradient.

    The script's own computation stays as it is, bit for bit: gradients are computed a second time to look inside.

    Args:
      log: Gets the values.
      on_gradient: Called with the function's key and the loss after each gradient that was computed, in any thread;
        with NaN for those that come when all is over.
      found: Called with kind, line and detail of what the script itself does about precision, as in
        `floatwise.tap.events.Found`.
      gave_up: Called with the error where a function cannot be traced; its products stay unseen.
    """

    def __init__(
        self,
        log: ValueLog,
        on_gradient: Callable[[Hashable, float], None],
        found: Callable[[str, str, str], None] = lambda kind, where, detail: None,
        gave_up: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.active = True
        """Whether anything is kept."""
        self.is_over = False
        """Whether the last iteration's gradients have come: only values that it still owes are kept."""
        self.parameters: dict[str, tuple[int, str]] = {}
        """Elements and dtype of every parameter seen, by path."""
        self._log, self._on_gradient, self._found, self._gave_up = log, on_gradient, found, gave_up
        self._book = SiteBook()
        self._lock = threading.Lock()
        self._weights: dict[str, Any] = {}
        self._kept: dict[Hashable, dict[Hashable, Any]] = {}
        self._untraceable: set[Hashable] = set()
        self._prefixes: dict[Hashable, str] = {}
        self._came: Counter[tuple[Hashable, str, str]] = Counter()
        self._shapes: dict[str, Any] = {}

    def loss_function(self, call: Call) -> Callable[..., Any]:
        """Returns the function as it is, and keeps what it computes."""
        if call.key in self._untraceable:
            return call.fun

        def keep(program: Program) -> None:
            call.kept = program

        gave_up = partial(self._cannot, call.key)
        kept = self._kept.setdefault((call.key, "script"), {})
        return rewrite(call.fun, _as_it_is, call.argnums, prepare=keep, gave_up=gave_up, kept=kept)

    def gradients(self, call: Call, loss: Any, grads: Any) -> Any:
        """Hands over the loss, the weights and their gradients, and computes the function anew to look inside."""
        given, paths = grads, self._paths(call)
        leaves = jax.tree.leaves(call.params)
        scale = own_scale(call.fun)
        if scale is not None:
            self._found("found_loss_scale", "", "flax.training.dynamic_scale.DynamicScale")
            loss, grads = loss / scale, jax.tree.map(lambda grad: grad / scale if is_real(grad) else grad, grads)
        again = self._computed_again(call, loss, scale) if call.kept is not None else None
        rows = [
            (path, weight, grad)
            for path, weight, grad in zip(paths, leaves, again or jax.tree.leaves(grads), strict=True)
            if is_real(weight) and is_real(grad)
        ]
        with self._lock:
            dtypes = {str(weight.dtype) for _, weight, _ in rows if weight.dtype.itemsize <= 2}
            for path, weight, _ in rows:
                self.parameters[path] = math.prod(weight.shape), str(weight.dtype)
        for dtype in sorted(dtypes):
            self._found("found_stored_in_16_bits", "", dtype)
        receive = partial(self._gradient_came, call.key, [path for path, _, _ in rows])
        tensors = [tensor for _, weight, grad in rows for tensor in (weight, grad)]
        tell(receive, jnp.asarray(loss, jnp.float32), tensors, self._log.sampled)
        return given

    def _computed_again(self, call: Call, loss: Any, scale: Any) -> list[Any] | None:
        """Computes the gradients a second time with everything handed over, and returns them by leaf.

        Looking at the script's own values would change what the compiler fuses, and with it their last bits.
        """
        program: Program = call.kept
        if 0 not in program.results:
            return None  # a constant
        if any(type(effect).__name__ in _ONCE for effect in program.jaxpr.effects):
            self._cannot(call.key, NotImplementedError("io_callback must not be called a second time"))
            return None
        leaves = jax.tree.leaves(call.params)
        places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
        # Behind the barrier the compiler cannot tell that it computes the same again, and starts after the loss.
        passed = behind(loss, [*(leaves[i] for i in places), *program.jaxpr.consts])
        operands, consts = passed[: len(places)], passed[len(places) :]
        rule = self._prepare(call, program)
        kept = self._kept.setdefault((call.key, "copy"), {})

        def loss_of(*given: Any) -> Any:
            whole = list(operands)
            for i, value in zip(differentiated, given, strict=True):
                whole[i] = value
            return evaluate_program(program, rule, whole, consts, kept)[program.results.index(0)]

        differentiated = [i for i, operand in enumerate(operands) if is_real(operand)]
        try:
            value, back = jax.vjp(loss_of, *(operands[i] for i in differentiated))
            grads = back(jnp.ones_like(value) if scale is None else jnp.asarray(1 / scale, value.dtype))
        except Exception as error:
            self._book.forget(call.key)
            self._cannot(call.key, error)
            return None
        results: list[Any] = [None] * len(leaves)
        for i, grad in zip(differentiated, grads, strict=True):
            results[places[i]] = grad
        return results

    def end_iteration(self) -> None:
        """Compares the weights with those of the last iteration."""
        with self._lock:
            weights = dict(self._weights)
        self._log.weights(weights)

    def sites(self, iterations: int) -> tuple[Site, ...]:
        """Returns every site seen over so many iterations."""
        return self._book.sites(iterations)

    def _prepare(self, call: Call, program: Program) -> Any:
        prefix = self._prefix(call)
        flow = Flow(Program(program.jaxpr, [prefix + path for path in program.parameters]) if prefix else program)
        self._book.traced(call.key, flow.sites)
        for dtype, where in flow.low.items():
            self._found("found_low_precision_products", where, dtype)
        return partial(self._rule, call.key, flow.taps)

    def _rule(
        self,
        key: Hashable,
        taps: dict[tuple[int, ...], Taps],
        equation: Equation,
        operands: Sequence[Any],
        evaluate: Evaluate,
    ) -> Sequence[Any]:
        if equation.primitive in _SCRIPTS_OWN:
            return []
        wanted = taps.get(equation.place)
        if wanted is None:
            return evaluate(*operands)
        for i, operand in enumerate(operands if wanted.inputs else ()):
            is_input = equation.parameters[i] is None and wanted.only in (None, i)
            if is_input and is_real(operand) and operand.ndim:
                tell(self._receiver(key, wanted.inputs, "input"), 0.0, [operand], self._log.sampled)
        results = list(_in_float32(equation, operands) if equation.primitive in PRODUCTS else evaluate(*operands))
        if wanted.output and is_real(results[0]):
            forward = self._receiver(key, wanted.output, "output")
            if wanted.gradient:
                backward = self._receiver(key, wanted.output, "grad_output")
                results[0] = watch(results[0], forward, backward, self._log.sampled)
            else:
                tell(forward, 0.0, [results[0]], self._log.sampled)
        return [_as_declared(result, aval) for result, aval in zip(results, equation.outputs, strict=True)]

    def _receiver(self, key: Hashable, path: str, role: str) -> Callable[[int, Any, list[Seen]], None]:
        return partial(self._value_came, key, path, role)

    def _value_came(self, key: Hashable, path: str, role: str, size: int, _: Any, seen: list[Seen]) -> None:
        with self._lock:
            allowed = self._book.calls(key, path, under_way=not self.is_over)
            if not self.active or self._came[key, path, role] >= allowed:
                return  # computed again in a backward pass, or of an iteration that is not wanted any more
            self._came[key, path, role] += 1
        for one in seen:
            self._log.add(path, role, one.sample, one.elements, one.amax)

    def _gradient_came(self, key: Hashable, paths: list[str], size: int, loss: Any, seen: list[Seen]) -> None:
        if not self.active:
            return
        if self.is_over:
            self._on_gradient(key, math.nan)  # all of the last wanted iteration is computed by now
            return
        for path, weight, grad in zip(paths, seen[::2], seen[1::2], strict=True):
            self._log.add(path, "weight", weight.sample, weight.elements, weight.amax)
            self._log.add(path, "weight_grad", grad.sample, grad.elements, grad.amax)
            with self._lock:
                self._weights[path] = weight.sample
        self._book.ran(key, size)
        self._on_gradient(key, float(np.asarray(loss)))

    def _paths(self, call: Call) -> list[str]:
        prefix = self._prefix(call)
        return [prefix + path for path in parameter_paths(call.fun, call.argnums, call.args)]

    def _prefix(self, call: Call) -> str:
        """Returns what to put in front of the paths of a network whose parameters another one's have the names of."""
        if call.key not in self._prefixes:
            paths = parameter_paths(call.fun, call.argnums, call.args)
            shapes = {
                p: leaf.shape for p, leaf in zip(paths, jax.tree.leaves(call.params), strict=True) if is_real(leaf)
            }
            clash = any(self._shapes.get(path, shape) != shape for path, shape in shapes.items())
            self._prefixes[call.key] = f"{argument_name(call.fun, call.argnums, len(call.args))}." if clash else ""
            self._shapes.update({self._prefixes[call.key] + path: shape for path, shape in shapes.items()})
        return self._prefixes[call.key]

    def _cannot(self, key: Hashable, error: Exception) -> None:
        self._untraceable.add(key)
        self._gave_up(error)


def _as_it_is(equation: Equation, operands: Sequence[Any], evaluate: Evaluate) -> Sequence[Any]:
    return evaluate(*operands)


def _in_float32(equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    """Computes a product of operands of 16 bits or fewer in float32, any other as it is."""
    traced = equation.traced
    params = dict(traced.params)
    if all(operand.dtype.itemsize <= 2 and is_real(operand) for operand in operands):
        operands = [jax.lax.convert_element_type(operand, jnp.float32) for operand in operands]
        params["preferred_element_type"] = jnp.dtype(jnp.float32)
    return [traced.primitive.bind(*operands, **params)]


def _as_declared(value: Any, aval: Any) -> Any:
    return value if value.dtype == aval.dtype else jax.lax.convert_element_type(value, aval.dtype)

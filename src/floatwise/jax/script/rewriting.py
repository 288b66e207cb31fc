# SPDX-License-Identifier: Apache-2.0
"""A loss function evaluated equation by equation, with a rule that may look at each and replace it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax
import numpy

from floatwise.jax.script.trace_calls import CALLS
from floatwise.jax.script.trace_equation import Equation
from floatwise.jax.script.trace_evaluation import Evaluation
from floatwise.jax.script.trace_paths import parameter_paths
from floatwise.jax.script.trace_walk import Program

__all__ = ["CALLS", "Equation", "Evaluate", "Program", "Rule", "evaluate_program", "is_array", "rewrite"]

Evaluate = Callable[..., Sequence[Any]]
"""Computes an equation as it is from its operands, given one by one."""


class Rule(Protocol):
    """What is done with an equation."""

    def __call__(self, equation: Equation, operands: Sequence[Any], evaluate: Evaluate) -> Sequence[Any]:
        """Returns the results of an equation, one for each of `equation.outputs`.

        `evaluate(*operands)` computes the equation as it is, and goes into what has equations inside (`CALLS`: `jit`,
        remat, `scan`, `cond`, `closed_call`), where the rule is asked about each of these; a rule that binds such a
        call itself keeps them from being asked about. `while`, custom derivatives and anything unknown are computed as
        they are: the derivative rules of `softmax`, `relu` and the like stay.

        Operands may be of other floating dtypes than `equation.inputs` declare, where the rule returned such results
        before; `evaluate` casts them back, except those of products' callers, which go inside as they are. What leaves
        the function, a scan's carry, and a cond's branch has the declared dtype again.

        The rule must not close over tracers: what it returns for a call may be kept, and used in later traces.
        """


def rewrite(
    fun: Callable[..., Any],
    rule: Rule,
    argnums: Any = 0,
    *,
    prepare: Callable[[Program], Rule | None] | None = None,
    gave_up: Callable[[Exception], None] | None = None,
    kept: dict[Hashable, Any] | None = None,
) -> Callable[..., Any]:
    """Returns a function of the same signature, results and bits as `fun`, evaluated under a rule.

    Each call traces `fun` as a function of the array leaves of its differentiated arguments; all else is closed over
    and reaches `fun` untouched. What `fun` returns may hold anything: what depends on the differentiated arguments
    must be arrays, the rest is handed through.

    A function that cannot be traced, since it branches in Python on values, is called as it is instead. It has then
    been called twice, once in vain; Python's and NumPy's random states are put back in between.

    Args:
      fun: The function.
      rule: What is done with each equation.
      argnums: The differentiated arguments, as for `jax.grad`. Default: the first.
      prepare: Gets the traced program before it is evaluated, and may return the rule for it. None: no preparation.
      gave_up: Gets the error when `fun` could not be traced, or not be evaluated under the rule. None: nobody.
      kept: Holds rebuilt `jit` functions by place, so that an eager script does not compile them each time; one
        dictionary per function and rule. None: they are made anew in each call.
    """

    @functools.wraps(fun)
    def under_rule(*args: Any, **kwargs: Any) -> Any:
        states = _Once(fun)
        try:
            return _evaluated(fun, rule, argnums, prepare, {} if kept is None else kept, args, kwargs)
        except Exception as error:
            # Whatever it is: if the script's own, the call below raises it again.
            states.put_back()
            result = fun(*args, **kwargs)
            if gave_up is not None:
                gave_up(error)
            return result

    return under_rule


def evaluate_program(
    program: Program, rule: Rule, operands: Sequence[Any], consts: Sequence[Any], kept: dict[Hashable, Any]
) -> list[Any]:
    """Returns the results of a traced program, as its jaxpr has them.

    Args:
      program: The program.
      rule: What is done with each equation.
      operands: In place of the differentiated arguments' array leaves.
      consts: In place of the constants of its jaxpr.
      kept: As for `rewrite`.
    """
    evaluation = Evaluation(rule, program.names, kept)
    results = evaluation.run(program.jaxpr.jaxpr, consts, operands, program.parameters, program.around)
    return [evaluation.as_declared(v, aval) for v, aval in zip(results, program.jaxpr.out_avals, strict=True)]


class _Once:
    """The states that a first call of a function in vain would have moved."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self._python, self._numpy = random.getstate(), numpy.random.get_state()
        # Flax's nnx hands the parts of a module that are not differentiated over in a queue, which a call empties
        # (flax.nnx.transforms.autodiff.GradFn, 0.12).
        self._queue = getattr(fun, "nondiff_states", None)
        self._queued = list(self._queue) if self._queue is not None else []

    def put_back(self) -> None:
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        if self._queue is not None:
            self._queue.clear()
            self._queue.extend(self._queued)


def _evaluated(
    fun: Callable[..., Any],
    rule: Rule,
    argnums: Any,
    prepare: Callable[[Program], Rule | None] | None,
    kept: dict[Hashable, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    numbers = [n % len(args) for n in (argnums if isinstance(argnums, Sequence) else (argnums,))]
    leaves, structure = jax.tree.flatten([args[number] for number in numbers])
    places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    paths = parameter_paths(fun, argnums, args)
    whole: list[Any] = []

    def of_arrays(*arrays: Any) -> list[Any]:
        mine = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            mine[place] = array
        inner = list(args)
        for number, value in zip(numbers, jax.tree.unflatten(structure, mine), strict=True):
            inner[number] = value
        results, form = jax.tree.flatten(fun(*inner, **kwargs))
        traced = [i for i, leaf in enumerate(results) if isinstance(leaf, jax.core.Tracer)]
        whole[:] = [form, [None if i in traced else leaf for i, leaf in enumerate(results)], traced]
        return [results[i] for i in traced]

    arrays = [leaves[i] for i in places]
    jaxpr = jax.make_jaxpr(of_arrays)(*arrays)
    form, results, traced = whole
    program = Program(jaxpr, [paths[i] for i in places], traced)
    chosen = (prepare(program) if prepare is not None else None) or rule
    for place, output in zip(traced, evaluate_program(program, chosen, arrays, jaxpr.consts, kept), strict=True):
        results[place] = output
    return jax.tree.unflatten(form, results)


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf of an argument is what a function is traced over: an array, or a number."""
    return isinstance(leaf, (bool, int, float, complex)) or (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))

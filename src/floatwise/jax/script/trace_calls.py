# SPDX-License-Identifier: Apache-2.0
"""What has equations inside, made anew around an evaluation of these: `jit`, remat, `scan`, `cond`, `closed_call`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import ClosedJaxpr

from floatwise.jax.script.trace_equation import Equation, Surroundings
from floatwise.jax.script.trace_modules import ModuleNames
from floatwise.tap.frames import is_users_file

if TYPE_CHECKING:
    from floatwise.jax.script.trace_evaluation import Evaluation

__all__ = ["CALLS", "bodies"]

Rebuild = Callable[["Evaluation", Equation, Sequence[Any]], "Sequence[Any] | None"]


def _inside(equation: Equation, jaxpr: Any, names: ModuleNames, branch: int | None = None) -> Surroundings:
    turns = equation.params["length"] if equation.primitive == "scan" else 1
    place = equation.place if branch is None else (*equation.place, branch)
    # A library's function that was traced before keeps the lines of whoever called it first.
    line = equation.line if equation.line or _is_users_function(jaxpr) else equation.where
    return Surroundings(equation.scopes, place, line, equation.turns * turns, names)


def bodies(equation: Equation, names: ModuleNames) -> list[tuple[Any, Surroundings, tuple[str | None, ...]]]:
    """Returns the closed jaxprs inside an equation of `CALLS`: their surroundings, and which operands are parameters.

    They are in the order of their branches; a scan's slices of a stacked parameter count as the parameter.
    """
    if equation.primitive == "cond":
        branches = equation.params["branches"]
        return [(b, _inside(equation, b, names, i), equation.parameters[1:]) for i, b in enumerate(branches)]
    jaxpr = _body(equation.params)
    return [(jaxpr, _inside(equation, jaxpr, names), equation.parameters)]


def _jit(evaluation: Evaluation, equation: Equation, operands: Sequence[Any]) -> Sequence[Any] | None:
    params = equation.params
    shardings = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    if any(type(sharding).__name__ != "UnspecifiedValue" for sharding in shardings):
        return None
    jaxpr = params["jaxpr"]
    key = (equation.place, id(jaxpr), equation.parameters, equation.scopes)
    if key not in evaluation.kept:
        run = _runner(evaluation, equation)
        run.__name__ = run.__qualname__ = params["name"]
        # The equation goes with it: the number of a jaxpr that is gone may become another's.
        evaluation.kept[key] = jax.jit(run, inline=params["inline"], keep_unused=params["keep_unused"]), equation
    results: Sequence[Any] = evaluation.kept[key][0](*operands)
    return results


def _remat(evaluation: Evaluation, equation: Equation, operands: Sequence[Any]) -> Sequence[Any] | None:
    params = equation.params
    if params["differentiated"]:
        return None
    run = jax.checkpoint(_runner(evaluation, equation), prevent_cse=params["prevent_cse"], policy=params["policy"])
    results: Sequence[Any] = run(*operands)
    return results


def _inline(evaluation: Evaluation, equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    results: Sequence[Any] = _runner(evaluation, equation)(*operands)
    return results


def _scan(evaluation: Evaluation, equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    params = equation.params
    first, after = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, xs = tuple(operands[:first]), tuple(operands[after:])
    run = _runner(evaluation, equation)
    declared = params["jaxpr"].in_avals[first:after]

    def as_declared(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(evaluation.as_declared(value, aval) for value, aval in zip(values, declared, strict=True))

    def body(carry: Any, x: Any) -> Any:
        results = run(*consts, *carry, *x)
        count = len(declared)
        return as_declared(results[:count]), tuple(results[count:])

    more = {"_split_transpose": True} if params.get("_split_transpose") else {}
    carry, ys = jax.lax.scan(
        body,
        as_declared(operands[first:after]),
        xs,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        **more,
    )
    return [*carry, *ys]


def _cond(evaluation: Evaluation, equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    runs = []
    for jaxpr, around, parameters in bodies(equation, evaluation.names):

        def run(*given: Any, jaxpr: Any = jaxpr, around: Any = around, parameters: Any = parameters) -> list[Any]:
            results = evaluation.run(jaxpr.jaxpr, jaxpr.consts, given, parameters, around)
            return [evaluation.as_declared(v, aval) for v, aval in zip(results, jaxpr.out_avals, strict=True)]

        runs.append(run)
    index, *rest = operands
    results: Sequence[Any]
    if len(runs) == 2:
        results = jax.lax.cond(jax.lax.convert_element_type(index, bool), runs[1], runs[0], *rest)
    else:
        results = jax.lax.switch(index, runs, *rest)
    return results


def _runner(evaluation: Evaluation, equation: Equation) -> Any:
    ((jaxpr, around, parameters),) = bodies(equation, evaluation.names)

    def run(*operands: Any) -> list[Any]:
        return evaluation.run(jaxpr.jaxpr, jaxpr.consts, operands, parameters, around)

    return run


def _body(params: Any) -> Any:
    """Returns the closed jaxpr of a call's parameters; remat has an open one without constants."""
    jaxpr = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
    return jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())


def _is_users_function(jaxpr: Any) -> bool:
    """Returns whether the function of a jaxpr was written by the user: `name at file:line` says where."""
    info = getattr(getattr(jaxpr.jaxpr, "debug_info", None), "func_src_info", None) or ""
    return is_users_file(info.rpartition(" at ")[2].rpartition(":")[0])


#: Primitives that the evaluation goes into, and how: `jit` was `pjit` before JAX 0.7, `remat2` may be `checkpoint`.
CALLS: dict[str, Rebuild] = {
    "jit": _jit,
    "pjit": _jit,
    "remat2": _remat,
    "checkpoint": _remat,
    "remat": _remat,
    "closed_call": _inline,
    "core_call": _inline,
    "scan": _scan,
    "cond": _cond,
}

# SPDX-License-Identifier: Apache-2.0
"""Evaluates a jaxpr under a rule."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import source_info_util
from jax.extend.core import Literal

from floatwise.jax.script.trace_calls import CALLS
from floatwise.jax.script.trace_equation import Equation, Surroundings, as_equation, follow_forms
from floatwise.jax.script.trace_modules import ModuleNames

__all__ = ["Evaluation"]


class Evaluation:
    """One evaluation of a program.

    Args:
      rule: See `floatwise.jax.script.rewriting.Rule`.
      names: Makes module paths of scopes.
      kept: Functions made for calls, by place.
    """

    def __init__(self, rule: Callable[..., Sequence[Any]], names: ModuleNames, kept: dict[Hashable, Any]) -> None:
        self.rule, self.names, self.kept = rule, names, kept

    def run(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        operands: Sequence[Any],
        parameters: Sequence[str | None],
        around: Surroundings,
    ) -> list[Any]:
        """Returns the results of an open jaxpr."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, operands, strict=True))
        paths = {var: path for var, path in zip(jaxpr.invars, parameters, strict=True) if path is not None}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        last = _last_uses(jaxpr)
        for number, traced in enumerate(jaxpr.eqns):
            equation = as_equation(traced, number, paths, around)
            operands = [read(atom) for atom in traced.invars]
            stack = source_info_util.current_name_stack() + traced.source_info.name_stack
            with (
                source_info_util.user_context(traced.source_info.traceback, name_stack=stack),
                traced.ctx.manager,
            ):
                results = self.rule(equation, operands, lambda *given, e=equation: self._as_it_is(e, given))
            values.update(zip(traced.outvars, results, strict=True))
            follow_forms(equation, paths)
            for var in last[number]:
                values.pop(var, None)
        return [read(atom) for atom in jaxpr.outvars]

    def as_declared(self, value: Any, aval: Any) -> Any:
        """Returns a floating value in the dtype that a jaxpr declares for it; any other as it is."""
        declared: Any = getattr(aval, "dtype", None)
        found = getattr(value, "dtype", None)
        if found is None or found == declared or not _is_floating(found) or not _is_floating(declared):
            return value
        return jax.lax.convert_element_type(value, declared)

    def _as_it_is(self, equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
        call = CALLS.get(equation.primitive)
        if call is not None:
            results = call(self, equation, operands)
            if results is not None:
                return results
        traced = equation.traced
        cast = [self.as_declared(value, aval) for value, aval in zip(operands, equation.inputs, strict=True)]
        result = _bound(traced, cast)
        return list(result) if traced.primitive.multiple_results else [result]


def _bound(traced: Any, operands: Sequence[Any]) -> Any:
    given = traced.primitive.get_bind_params(traced.params)
    if isinstance(given, dict):
        return traced.primitive.bind(*operands, **given)
    functions, params = given  # as JAX had it up to 0.7
    return traced.primitive.bind(*functions, *operands, **params)


def _last_uses(jaxpr: Any) -> list[list[Any]]:
    """Returns for each equation the variables that nothing after it reads: they may go."""
    kept = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    last: list[list[Any]] = [[] for _ in jaxpr.eqns]
    for number in reversed(range(len(jaxpr.eqns))):
        for atom in (*jaxpr.eqns[number].invars, *jaxpr.eqns[number].outvars):
            if not isinstance(atom, Literal) and atom not in kept:
                kept.add(atom)
                last[number].append(atom)
    return last


def _is_floating(dtype: Any) -> bool:
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.floating))

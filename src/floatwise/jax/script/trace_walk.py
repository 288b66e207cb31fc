# SPDX-License-Identifier: Apache-2.0
"""The equations of a traced program, without evaluating them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from floatwise.jax.script.trace_calls import CALLS, bodies
from floatwise.jax.script.trace_equation import Equation, Surroundings, as_equation, follow_forms
from floatwise.jax.script.trace_modules import ModuleNames

__all__ = ["Program", "equations"]


class Program:
    """A traced function, before it is evaluated.

    Attributes:
      jaxpr: JAX's closed jaxpr; its operands are the array leaves of the differentiated arguments.
      parameters: Their paths.
      results: Which leaves of what the function returns the results of the jaxpr are; the loss is leaf 0.
      names: Makes module paths of scopes.
    """

    def __init__(self, jaxpr: Any, parameters: Sequence[str], results: Sequence[int] = (0,)) -> None:
        self.jaxpr, self.parameters, self.results, self.names = jaxpr, list(parameters), tuple(results), ModuleNames()
        for equation in equations(jaxpr.jaxpr, self.parameters, Surroundings()):
            for parameter in equation.parameters:
                if parameter is not None:
                    self.names.learn(equation.scopes, parameter)

    @property
    def around(self) -> Surroundings:
        """The surroundings of its outermost equations."""
        return Surroundings(names=self.names)


def equations(jaxpr: Any, parameters: Sequence[str | None], around: Surroundings) -> Iterator[Equation]:
    """Yields every equation of an open jaxpr, each before those inside it, as an evaluation meets them."""
    paths = {var: path for var, path in zip(jaxpr.invars, parameters, strict=True) if path is not None}
    for number, traced in enumerate(jaxpr.eqns):
        equation = as_equation(traced, number, paths, around)
        yield equation
        follow_forms(equation, paths)
        if equation.primitive in CALLS:
            for body, surroundings, within in bodies(equation, around.names):
                yield from equations(body.jaxpr, within, surroundings)

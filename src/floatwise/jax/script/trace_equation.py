# SPDX-License-Identifier: Apache-2.0
"""One equation of a traced loss function, as a rule sees it."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import Literal

from floatwise.jax.census.walk import call_names, user_line
from floatwise.jax.script.trace_modules import ModuleNames

__all__ = ["FORMS", "Equation", "Surroundings", "as_equation", "follow_forms"]

#: Primitives whose result is their first operand in another form (jax.lax).
FORMS = frozenset(
    "reshape transpose convert_element_type broadcast_in_dim squeeze copy copy_p pvary pcast reduced_vary_cast".split()
)


@dataclass(frozen=True)
class Surroundings:
    """What is around the equations of one jaxpr.

    Attributes:
      scopes: Names of the scopes that its caller stands in.
      place: Where its caller stands; see `Equation.place`.
      line: `path:line` of its caller, where its own lines cannot be trusted; else empty.
      turns: How often it runs in one run of the function.
      names: Makes module paths of scopes.
    """

    scopes: tuple[str, ...] = ()
    place: tuple[int, ...] = ()
    line: str = ""
    turns: int = 1
    names: ModuleNames = field(default_factory=ModuleNames)


@dataclass(frozen=True, eq=False)
class Equation:
    """One equation.

    Attributes:
      primitive: Its name: `dot_general`, `conv_general_dilated`, `add`, and `jit`, `scan`, `cond`, `remat2`,
        `custom_jvp_call` … for what has equations inside.
      params: The primitive's parameters.
      inputs: Declared shapes and dtypes of the operands (`.shape`, `.dtype`).
      outputs: Those of the results.
      scopes: Names of the scopes around it, outermost first: Flax linen's modules (the model's class first, then the
        names of the submodules), Haiku's, and those of `jax.named_scope`; without `jvp`, `vmap`, `transpose`.
      module: Path of the module it belongs to, as in the parameters' paths: that of its parameter's where it has one
        (nnx, Equinox and plain JAX have no scopes), else that of its scopes; empty for the model itself.
      parameters: For each operand the path of the parameter that it is, possibly transposed, reshaped or cast; None
        where it is none.
      place: Where it stands: the number of the equation in the function, then in what is inside of that, and so on.
        The same in every trace of the same program.
      turns: How often it runs in one run of the function: the product of the lengths of the scans around it.
      traced: JAX's own equation.
      line: `path:line` of the call it stands in, where its own cannot be trusted.
    """

    primitive: str
    params: Mapping[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    scopes: tuple[str, ...]
    module: str
    parameters: tuple[str | None, ...]
    place: tuple[int, ...]
    turns: int
    traced: Any
    line: str = ""

    @functools.cached_property
    def where(self) -> str:
        """The user's `path:line`, relative to the working directory; empty where no line is the user's."""
        return _relative(self.line or user_line(self.traced))

    @functools.cached_property
    def functions(self) -> tuple[str, ...]:
        """The library functions it was made in, innermost first, as `package:name`: `("jax:softmax",)`."""
        return tuple(call_names(self.traced))


def as_equation(traced: Any, number: int, paths: Mapping[Any, str], around: Surroundings) -> Equation:
    """Returns an equation of JAX's as rules see it.

    Args:
      traced: JAX's equation.
      number: Its number in its jaxpr.
      paths: Parameters' paths by variable.
      around: Its surroundings.
    """
    scopes = (*around.scopes, *_scopes_of(traced))
    parameters = tuple(None if isinstance(atom, Literal) else paths.get(atom) for atom in traced.invars)
    return Equation(
        primitive=traced.primitive.name,
        params=traced.params,
        inputs=tuple(atom.aval for atom in traced.invars),
        outputs=tuple(var.aval for var in traced.outvars),
        scopes=scopes,
        module=around.names.module_of(scopes, parameters),
        parameters=parameters,
        place=(*around.place, number),
        turns=around.turns,
        traced=traced,
        line=around.line,
    )


def follow_forms(equation: Equation, paths: dict[Any, str]) -> None:
    """Adds the result of an equation to the parameters' paths where it is a parameter in another form."""
    if equation.primitive in FORMS and equation.parameters[0] is not None:
        paths[equation.traced.outvars[0]] = equation.parameters[0]


def _scopes_of(traced: Any) -> tuple[str, ...]:
    stack = traced.source_info.name_stack.stack
    names = [entry.name for entry in stack if type(entry).__name__ == "Scope"]
    return tuple(scope for name in names for part in name.split("/") if (scope := _scope(part)))


def _scope(name: str) -> str:
    """Returns a scope's name without what is no name: Equinox's classes, an einsum's formula, a method of Flax's."""
    if name.startswith("eqx.") or "," in name or "->" in name:
        return ""
    return name.partition(".")[0]


def _relative(line: str) -> str:
    if not line:
        return ""
    path, _, number = line.rpartition(":")
    relative = os.path.relpath(path)
    return f"{os.path.abspath(path) if relative.startswith('..') else relative}:{number}"

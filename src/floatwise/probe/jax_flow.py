# SPDX-License-Identifier: Apache-2.0
"""Where a traced loss computes: its products, softmax, losses, and the arithmetic between 16-bit products.

The rules are those of `floatwise.probe.sources`, read from the jaxpr in place of autograd's graph.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import Literal

from floatwise.formats import get_format
from floatwise.jax.script.rewriting import CALLS, Equation, Program
from floatwise.jax.script.trace_calls import bodies
from floatwise.jax.script.trace_equation import FORMS, Surroundings, as_equation, follow_forms
from floatwise.probe.jax_names import float32_operator, is_within_operator
from floatwise.probe.jax_products import PRODUCTS, product_name, product_shape
from floatwise.probe.jax_taps import OF_FLOAT32

__all__ = ["Flow", "SiteRow", "Taps"]

#: Primitives whose results autocast computes in float32 (floatwise.probe.sources), as JAX names them.
_FLOAT32 = frozenset(
    "exp exp2 expm1 log log1p pow integer_pow square rsqrt reduce_sum reduce_prod cumsum cumprod cumlogsumexp "
    "erf_inv lgamma digamma".split()
)
_ARITHMETIC = {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "select_n": "masked_fill"}
#: Calls of one operator in one module that are sites of their own; as in `floatwise.tap.operators`.
_SITES_PER_OPERATOR = 16

Place = tuple[int, ...]


@dataclass(frozen=True)
class _Mark:
    """What is known of a value.

    Attributes:
      sources: Sites whose 16-bit results it is computed from; None where it would be float32.
      data: It is an array of the script's that has no gradient, or came from such alone.
      constant: The number that all its elements are, where that is known.
    """

    sources: frozenset[str] | None = frozenset()
    data: bool = False
    constant: float | None = None


_WIDE, _NEUTRAL, _DATA = _Mark(None), _Mark(), _Mark(data=True)


@dataclass
class Taps:
    """What is handed over at one equation; empty names are nothing.

    Attributes:
      inputs: Site whose inputs its operands are.
      output: Site whose output its result is.
      gradient: Whether the gradient of the result is wanted, too.
      only: Number of the one operand that is an input; None for all.
    """

    inputs: str = ""
    output: str = ""
    gradient: bool = False
    only: int | None = None


@dataclass
class SiteRow:
    """A site of one program; the fields are those of `floatwise.probe.recording.Site`, for one run of it."""

    kind: str
    parent: str
    matrix: bool
    calls: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    flops: int = 0
    weights: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    constant: float = 0.0


class Flow:
    """The sites of a program, and what is handed over where.

    Attributes:
      sites: By path, in the order of first use.
      taps: By the place of the equation.
      low: Formats of 16 bits or fewer that products have, with the user's line.
    """

    def __init__(self, program: Program) -> None:
        self.sites: dict[str, SiteRow] = {}
        self.taps: dict[Place, Taps] = {}
        self.low: dict[str, str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._paths: dict[Place, str] = {}
        self._last_operator: tuple[str, str, str] = ("", "", "")
        self._owners = {path.rpartition(".")[0] for path in program.parameters}
        jaxpr = program.jaxpr
        marks = [_NEUTRAL] * len(jaxpr.jaxpr.constvars)
        for i, var in enumerate(jaxpr.jaxpr.constvars):
            marks[i] = _DATA if var.aval.shape else _NEUTRAL
        self._run(jaxpr.jaxpr, marks, [_WIDE] * len(program.parameters), program.parameters, program.around)

    def _run(
        self,
        jaxpr: Any,
        consts: Sequence[_Mark],
        operands: Sequence[_Mark],
        parameters: Sequence[str | None],
        around: Surroundings,
    ) -> list[_Mark]:
        marks = dict(zip(jaxpr.constvars, consts, strict=True))
        marks.update(zip(jaxpr.invars, operands, strict=True))
        paths = {var: path for var, path in zip(jaxpr.invars, parameters, strict=True) if path is not None}
        products: dict[Any, tuple[str, Place]] = {}

        def read(atom: Any) -> _Mark:
            return _of_literal(atom) if isinstance(atom, Literal) else marks[atom]

        for number, traced in enumerate(jaxpr.eqns):
            equation = as_equation(traced, number, paths, around)
            given = [read(atom) for atom in traced.invars]
            if equation.primitive in PRODUCTS:
                results = [self._product(equation, given)]
                products[traced.outvars[0]] = self._paths[equation.place], equation.place
            elif self._adds_bias(equation, products):
                results = [given[0] if equation.parameters[0] is None else given[1]]
            elif equation.primitive in CALLS:
                results = self._call(equation, given, around)
            else:
                results = [self._other(equation, given)] * len(traced.outvars)
            marks.update(zip(traced.outvars, results, strict=True))
            if (
                equation.primitive in FORMS
                and not isinstance(traced.invars[0], Literal)
                and traced.invars[0] in products
            ):
                products[traced.outvars[0]] = products[traced.invars[0]]  # Equinox under vmap turns it around
            follow_forms(equation, paths)
        return [read(atom) for atom in jaxpr.outvars]

    def _call(self, equation: Equation, given: list[_Mark], around: Surroundings) -> list[_Mark]:
        found = bodies(equation, around.names)
        if equation.primitive == "cond":
            outs = [self._body(body, given[1:]) for body in found]
            return [_joined(marks) for marks in zip(*outs, strict=True)]
        results = self._body(found[0], given)
        if equation.primitive == "scan":
            first, count = equation.params["num_consts"], equation.params["num_carry"]
            carried = [_joined(pair) for pair in zip(given[first : first + count], results[:count], strict=True)]
            if carried != given[first : first + count]:
                results = self._body(found[0], [*given[:first], *carried, *given[first + count :]])
        return results

    def _body(self, body: Any, given: Sequence[_Mark]) -> list[_Mark]:
        jaxpr, around, parameters = body
        consts = [_DATA if getattr(const, "ndim", 0) else _NEUTRAL for const in jaxpr.consts]
        return self._run(jaxpr.jaxpr, consts, given, parameters, around)

    def _product(self, equation: Equation, given: Sequence[_Mark]) -> _Mark:
        if equation.place not in self._paths:
            self._new_product(equation)
        path = self._paths[equation.place]
        for mark in given:
            self.sites[path].sources.update((mark.sources or frozenset()) - {path})
        return _Mark(frozenset({path}))

    def _new_product(self, equation: Equation) -> None:
        name = product_name(equation)
        path = self._paths[equation.place] = self._path(equation, name)
        row = self.sites.setdefault(path, SiteRow(name, _parent(path), True))
        row.calls += equation.turns
        shape = product_shape(equation)
        if shape is not None:
            row.m, row.n, row.k = shape.m, shape.n, shape.k
            row.flops += shape.flops * equation.turns
        row.weights.update(weight for weight in equation.parameters if weight is not None)
        self.taps[equation.place] = Taps(path, path, True)
        for operand in equation.inputs:
            if operand.dtype.itemsize <= 2:
                self.low.setdefault(str(operand.dtype), equation.where)

    def _path(self, equation: Equation, name: str) -> str:
        """Returns a new site's path: a module's own product has the module's."""
        self._counts[equation.module, name] += 1
        count = min(self._counts[equation.module, name], _SITES_PER_OPERATOR)
        owns = equation.module in {path.rpartition(".")[0] for path in equation.parameters if path is not None}
        is_leaf = not any(owner.startswith(f"{equation.module}.") for owner in self._owners)
        if count == 1 and owns and is_leaf and equation.module:
            return equation.module
        return f"{equation.module}:{name}" + (f"#{count}" if count > 1 else "")

    def _adds_bias(self, equation: Equation, products: dict[Any, tuple[str, Place]]) -> bool:
        """Takes the addition of a module's bias to its product as part of that, as PyTorch's `linear` has it."""
        if equation.primitive != "add":
            return False
        made = [products.get(atom) for atom in equation.traced.invars if not isinstance(atom, Literal)]
        bias = next((path for path in equation.parameters if path is not None), None)
        product = next((entry for entry in made if entry is not None), None)
        if bias is None or product is None or bias.rpartition(".")[0] not in _owners(self.sites[product[0]].weights):
            return False
        path, place = product
        self.sites[path].weights.add(bias)
        self.taps[place].output, self.taps[place].gradient = "", False
        self.taps[equation.place] = Taps(output=path, gradient=True)
        return True

    def _other(self, equation: Equation, given: Sequence[_Mark]) -> _Mark:
        operator = float32_operator(equation)
        if operator:
            self._float32_operator(equation, operator)
            return _WIDE
        if equation.primitive in _FLOAT32:
            return _WIDE
        if equation.primitive in _ARITHMETIC and not is_within_operator(equation):
            return self._arithmetic(equation, given)
        constant = given[0].constant if len(given) == 1 and _keeps_values(equation) else None
        mark = _joined(given)
        return _Mark(mark.sources, mark.data, constant)

    def _arithmetic(self, equation: Equation, given: Sequence[_Mark]) -> _Mark:
        operands = given[1:] if equation.primitive == "select_n" else given
        mark = _joined(operands)
        if mark.sources is None or (mark.sources and any(operand.data for operand in operands)):
            return _WIDE if mark.sources is None or equation.primitive != "select_n" else mark
        if not mark.sources or not equation.outputs[0].shape or any(_is_of_float32(operand) for operand in operands):
            return mark
        name = _ARITHMETIC[equation.primitive]
        if equation.place not in self._paths:
            path = self._paths[equation.place] = self._path(equation, name)
            row = self.sites.setdefault(path, SiteRow(name, _parent(path), False))
            row.calls += equation.turns
            self.taps[equation.place] = Taps(output=path)
            row.constant = row.constant or _unholdable(operands, equation.primitive)
        self.sites[self._paths[equation.place]].sources.update(mark.sources)
        return mark

    def _float32_operator(self, equation: Equation, operator: str) -> None:
        call = (operator, equation.module, equation.where)
        if equation.place in self._paths or call == self._last_operator:
            return
        inputs = [i for i, aval in enumerate(equation.inputs) if _is_floating(aval) and aval.shape]
        if not inputs:
            return
        self._last_operator = call
        path = self._paths[equation.place] = self._path(equation, operator)
        self.sites.setdefault(path, SiteRow(operator, _parent(path), False)).calls += equation.turns
        self.taps[equation.place] = Taps(inputs=path, only=inputs[0])


def _joined(marks: Sequence[_Mark]) -> _Mark:
    if any(mark.sources is None for mark in marks):
        return _WIDE
    sources = frozenset[str]().union(*(mark.sources or frozenset() for mark in marks))
    return _Mark(sources, not sources and any(mark.data for mark in marks))


def _of_literal(literal: Any) -> _Mark:
    value = literal.val
    return _Mark(constant=float(value)) if isinstance(value, float) or _is_floating(literal.aval) else _NEUTRAL


def _keeps_values(equation: Equation) -> bool:
    return equation.primitive in ("broadcast_in_dim", "reshape", "convert_element_type", "copy", "squeeze")


def _unholdable(operands: Sequence[_Mark], primitive: str) -> float:
    """Returns a number among the operands that float16 makes infinite, or that it makes zero where it is added."""
    largest, vanishing = get_format("float16").max, get_format("float16").flush_threshold
    for mark in operands:
        number = mark.constant
        if number and math.isfinite(number):
            if abs(number) > largest or (primitive in ("add", "sub") and abs(number) <= vanishing):
                return number
    return 0.0


def _is_of_float32(mark: _Mark) -> bool:
    return mark.constant is not None and OF_FLOAT32 <= abs(mark.constant) < math.inf


def _parent(path: str) -> str:
    module, operator, _ = path.partition(":")
    return module if operator else module.rpartition(".")[0]


def _owners(weights: set[str]) -> set[str]:
    return {weight.rpartition(".")[0] for weight in weights}


def _is_floating(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and getattr(dtype, "kind", "") in "fV" and "float" in str(dtype)

# SPDX-License-Identifier: Apache-2.0
"""Python source as configuration: its calls with literal arguments, and its module-level constants. Nothing is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from typing import Any

from floatwise.exporters.forms.names import Scope, scopes_of
from floatwise.exporters.forms.parsed import FormError, Parsed
from floatwise.exporters.settings import UNKNOWN, Call, Dotted
from floatwise.plan.problems import Loc

__all__ = ["parse_python"]

# What one value may come to with the constants in it put in; convention. Thirty lines of `b = [a, a]` make 2^30.
_MOST_PARTS = 10_000
# Bits of the largest number computed here: float64 ends at 2^1024.
_MOST_BITS = 1024


def parse_python(text: str) -> Parsed:
    """Returns the calls and the module-level constants of Python source.

    Names that are assigned a literal once, in the module or in the function that uses them, are put in where a call
    uses them; imported names are written in full; `functools.partial(f, …)` counts as a call of `f` besides.

    Raises:
      FormError: The text is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an escape such as "\\d": nothing to do with precision
            tree = ast.parse(text)
    except SyntaxError as error:
        raise FormError(error.lineno or 1, f"not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormError(1, f"not Python: {error}") from None
    try:
        reader = _Reader(tree)
    except RecursionError:
        raise FormError(1, "not a configuration: its values are nested too deep") from None
    return Parsed(reader.constants, reader.lines, tuple(reader.calls))


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.constants: dict[str, Any] = {}
        self.lines: dict[Loc, int] = {}
        self.calls: list[Call] = []
        self._found: dict[int, Call] = {}
        self._parts: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is given twice
        self._names: dict[tuple[int, str], Any] = {}
        self._module, self._scopes = scopes_of(tree)
        self._assigned = {
            id(node.value): ast.unparse(node.targets[0])
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        }
        self._attributes = _attributes(tree)
        for name, value, line in _assignments(tree):
            self.constants[name] = UNKNOWN if name in self.constants else self.value(value)
            self.lines.setdefault((name,), line)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset, -(n.end_col_offset or 0))):
            call = self._call(node)
            self.calls.append(call)
            if call.name == "partial" and call.args and isinstance(call.args[0], Dotted):
                inner = call.args[0]
                self._note_lines(node, inner.last)
                self.calls.append(
                    Call(inner.last, call.args[1:], call.kwargs, call.line, str(inner), call.assigned, call.open)
                )

    def value(self, node: ast.expr) -> Any:
        """Returns what an expression is, as far as that can be told without running it."""
        if isinstance(node, ast.Call):
            return self._of_function(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return self._whole([self.value(item) for item in node.elts])
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Subscript):
            return _item(self.value(node.value), self.value(node.slice))
        return _number(node)

    def _attribute(self, node: ast.Attribute) -> Any:
        """Returns a name with its dots; of `self.name` that is assigned once in the source what it is assigned."""
        name = self._dotted(node)
        if not name:
            return UNKNOWN
        given = self._attributes.get(name, [])
        if len(given) == 1 and given[0] is not None:
            key = (0, name)
            if key not in self._names:
                self._names[key] = UNKNOWN
                self._names[key] = self.value(given[0])
            if self._names[key] is not UNKNOWN:
                return self._names[key]
        return Dotted(name)

    def _name(self, node: ast.Name) -> Any:
        scope = self._scopes.get(id(node), self._module)
        imported = scope.imported(node.id)
        if imported:
            return Dotted(imported)
        found = scope.find(node.id)
        if found is None:
            return Dotted(node.id)
        owner, bound = found
        unknown = UNKNOWN if owner is self._module and node.id in self.constants else Dotted(node.id)
        if len(bound) != 1 or not isinstance(bound[0], ast.expr):
            return unknown
        key = (id(owner), node.id)
        if key not in self._names:
            self._names[key] = UNKNOWN  # of `x = f(x)` the inner one
            self._names[key] = self.value(bound[0])
        value = self._names[key]
        return unknown if value is UNKNOWN else value

    def _of_function(self, node: ast.Call) -> Any:
        """Returns a call; of those that only name something what they name."""
        call = self._call(node)
        if call.name == "getattr" and len(call.args) == 2 and isinstance(call.args[0], Dotted):
            name = call.args[1]
            return Dotted(f"{call.args[0]}.{name}") if type(name) is str else UNKNOWN
        if call.dotted == "dict" and not call.args and not call.open:
            return self._whole(dict(call.kwargs))
        return call

    def _dict(self, node: ast.Dict) -> Any:
        table: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self.value(value)
                if not isinstance(inner, Mapping):
                    return UNKNOWN
                table |= inner
                continue
            name = self.value(key)
            if name is UNKNOWN or isinstance(name, Call | list | dict):
                return UNKNOWN
            try:
                table[name] = self.value(value)
            except TypeError:  # a tuple of lists
                return UNKNOWN
        return self._whole(table)

    def _call(self, node: ast.Call) -> Call:
        if id(node) in self._found:
            return self._found[id(node)]
        name = self._dotted(node.func)
        last = name.rpartition(".")[2] if name else ""
        kwargs: dict[str, Any] = {}
        is_open = any(isinstance(arg, ast.Starred) for arg in node.args)
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, Mapping) and all(type(key) is str for key in value):
                kwargs |= value
            else:
                is_open = True
        self._note_lines(node, last)
        args = tuple(self.value(arg) for arg in node.args)
        call = Call(last, args, kwargs, node.lineno, name, self._assigned.get(id(node), ""), is_open)
        if self._whole([*args, *kwargs.values()]) is UNKNOWN:
            unknown = dict.fromkeys(kwargs, UNKNOWN)
            call = Call(last, (UNKNOWN,) * len(args), unknown, node.lineno, name, call.assigned, is_open)
        self._parts[id(call)] = 1 + sum(self._parts.get(id(v), 1) for v in (*call.args, *call.kwargs.values()))
        self._found[id(node)] = call
        return call

    def _note_lines(self, node: ast.Call, last: str) -> None:
        for keyword in node.keywords:
            if keyword.arg is not None:
                self.lines.setdefault((last, keyword.arg), keyword.value.lineno)
        self.lines.setdefault((last,), node.lineno)

    def _whole(self, value: list[Any] | dict[Any, Any]) -> Any:
        """Returns the value; UNKNOWN where constants within constants make it too large."""
        parts = 1 + sum(self._parts.get(id(v), 1) for v in (value.values() if isinstance(value, dict) else value))
        if parts > _MOST_PARTS:
            return UNKNOWN
        self._kept.append(value)
        self._parts[id(value)] = parts
        return value

    def _dotted(self, node: ast.expr) -> str:
        """Returns a name with its dots, imported names in full; an empty text for anything else."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            scope: Scope = self._scopes.get(id(node), self._module)
            names.append(scope.imported(node.id) or node.id)
        # The method of a result, as in `model.to(...).half()`: its own name is what can be told.
        return ".".join(reversed(names))


def _assignments(tree: ast.Module) -> list[tuple[str, ast.expr, int]]:
    found: list[tuple[str, ast.expr, int]] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found += [(t.id, node.value, node.lineno) for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.append((node.target.id, node.value, node.lineno))
    return found


def _attributes(tree: ast.Module) -> dict[str, list[ast.expr | None]]:
    """Returns what is assigned to `self.name`, by that text; None where it is no plain assignment."""
    plain = {
        id(target): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    found: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            if node.value.id == "self":
                found.setdefault(f"self.{node.attr}", []).append(plain.get(id(node)))
    return found


def _item(whole: Any, key: Any) -> Any:
    """Returns the item of a literal table or list; UNKNOWN of anything else."""
    if isinstance(whole, dict) and type(key) in (str, int):
        return whole.get(key, UNKNOWN)
    if isinstance(whole, list) and type(key) is int and -len(whole) <= key < len(whole):
        return whole[key]
    return UNKNOWN


def _number(node: ast.expr) -> Any:
    """Returns a literal, or the value of arithmetic on literals such as `2.0**16`."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.Mult | ast.Div):
        left, right = _number(node.left), _number(node.right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return _computed(node.op, left, right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return -inner if isinstance(inner, int | float) else UNKNOWN
    return UNKNOWN


def _computed(op: ast.operator, left: float, right: float) -> Any:
    """Returns a power, product or quotient; UNKNOWN where it is past float64 or no real number."""
    if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * abs(right) > _MOST_BITS:
            return UNKNOWN
    try:
        if isinstance(op, ast.Pow):
            value = left**right
        else:
            value = left * right if isinstance(op, ast.Mult) else left / right
    except (OverflowError, ZeroDivisionError):
        return UNKNOWN
    return UNKNOWN if isinstance(value, complex) or abs(value) >= 2**_MOST_BITS else value

# SPDX-License-Identifier: Apache-2.0
"""Python source as configuration: its calls with literal arguments, and its module-level constants. Nothing is run."""

from __future__ import annotations

import ast
from typing import Any

from floatwise.exporters.forms.parsed import FormError, Parsed
from floatwise.exporters.settings import UNKNOWN, Call, Dotted
from floatwise.plan.problems import Loc

__all__ = ["parse_python"]


def parse_python(text: str) -> Parsed:
    """Returns the calls and the module-level constants of Python source.

    Names that are assigned a literal once at module level are put in where a call uses them.

    Raises:
      FormError: The text is not Python.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise FormError(error.lineno or 1, f"not Python: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise FormError(1, f"not Python: {error}") from None
    reader = _Reader(tree)
    return Parsed(reader.constants, reader.lines, tuple(reader.calls))


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.constants: dict[str, Any] = {}
        self.lines: dict[Loc, int] = {}
        self.calls: list[Call] = []
        self._found: dict[int, Call] = {}
        self._assigned = {
            id(node.value): ast.unparse(node.targets[0])
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        }
        for name, value, line in _assignments(tree):
            self.constants[name] = UNKNOWN if name in self.constants else self.value(value)
            self.lines.setdefault((name,), line)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset, -(n.end_col_offset or 0))):
            call = self._call(node)
            index = sum(other.name == call.name for other in self.calls)
            self.calls.append(call)
            if index:  # the first stands under its name alone
                self.lines[(call.name, index)] = call.line

    def value(self, node: ast.expr) -> Any:
        """Returns what an expression is, as far as that can be told without running it."""
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Name | ast.Attribute):
            name = _dotted(node)
            if isinstance(node, ast.Name) and node.id in self.constants:
                return self.constants[node.id]
            return Dotted(name) if name else UNKNOWN
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Dict):
            return self._dict(node)
        return _number(node)

    def _dict(self, node: ast.Dict) -> Any:
        table: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            name = self.value(key) if key is not None else UNKNOWN
            if name is UNKNOWN or isinstance(name, Call | list | dict):
                return UNKNOWN
            table[name] = self.value(value)
        return table

    def _call(self, node: ast.Call) -> Call:
        if id(node) in self._found:
            return self._found[id(node)]
        name = _dotted(node.func)
        last = name.rpartition(".")[2] if name else ""
        kwargs = {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}
        for keyword in node.keywords:
            if keyword.arg is not None:
                self.lines.setdefault((last, keyword.arg), keyword.value.lineno)
        self.lines.setdefault((last,), node.lineno)
        args = tuple(self.value(arg) for arg in node.args)
        call = Call(last, args, kwargs, node.lineno, name, self._assigned.get(id(node), ""))
        self._found[id(node)] = call
        return call


def _assignments(tree: ast.Module) -> list[tuple[str, ast.expr, int]]:
    found: list[tuple[str, ast.expr, int]] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found += [(t.id, node.value, node.lineno) for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.append((node.target.id, node.value, node.lineno))
    return found


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        # The method of a result, as in `model.to(...).half()`: its own name is what can be told.
        return f"{inner}.{node.attr}" if inner else node.attr
    return ""


def _number(node: ast.expr) -> Any:
    """Returns a literal, or the value of arithmetic on literals such as `2.0**16`."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.Mult | ast.Div):
        left, right = _number(node.left), _number(node.right)
        if isinstance(left, int | float) and isinstance(right, int | float) and abs(right) <= 1024:
            try:
                if isinstance(node.op, ast.Pow):
                    return left**right
                return left * right if isinstance(node.op, ast.Mult) else left / right
            except (OverflowError, ZeroDivisionError):
                return UNKNOWN
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return -inner if isinstance(inner, int | float) else UNKNOWN
    return UNKNOWN

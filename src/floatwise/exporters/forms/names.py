# SPDX-License-Identifier: Apache-2.0
"""What names in Python source stand for: imports under any alias, and variables that are assigned once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Scope", "scopes_of"]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(eq=False)
class Scope:
    """A module, class or function, and what is bound in it.

    Attributes:
      parent: The scope around it whose names are seen in it; None for the module.
      bound: By name, the expressions assigned to it; an imported name as text; None for all else that binds it
        (arguments, loops, `with … as`), which only running would tell.
    """

    parent: Scope | None = None
    bound: dict[str, list[ast.expr | str | None]] = field(default_factory=dict)

    def bind(self, name: str, value: ast.expr | str | None) -> None:
        """Notes one more thing that a name is bound to."""
        self.bound.setdefault(name, []).append(value)

    def find(self, name: str) -> tuple[Scope, list[ast.expr | str | None]] | None:
        """Returns the innermost scope that binds a name, and what it is bound to; None when none does."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bound:
                return scope, scope.bound[name]
            scope = scope.parent
        return None

    def imported(self, name: str) -> str:
        """Returns the full name of an imported name; an empty text where it is not imported, or bound otherwise."""
        found = self.find(name)
        if found is None or not all(isinstance(value, str) for value in found[1]):
            return ""
        return str(found[1][0])  # of `try: import … except ImportError: import …` the first


def scopes_of(tree: ast.Module) -> tuple[Scope, dict[int, Scope]]:
    """Returns the module's scope, and the scope of each node by its id."""
    module = Scope()
    scopes: dict[int, Scope] = {}
    # A stack, for a chain of a thousand `elif` nests as deep.
    stack: list[tuple[ast.AST, Scope, Scope]] = [(tree, module, module)]
    while stack:
        node, scope, around = stack.pop()
        scopes[id(node)] = scope
        stack.extend(_inside(node, scope, around, module))
    return module, scopes


def _inside(node: ast.AST, scope: Scope, around: Scope, module: Scope) -> Iterator[tuple[ast.AST, Scope, Scope]]:
    """Binds what `node` binds, and yields its children with their scopes.

    `around` is the scope that functions made here see: that of a class is not seen in its methods.
    """
    _bind(node, scope, module)
    if isinstance(node, _FUNCTIONS):
        inner = Scope(around)
        for arg in ast.walk(node.args):
            if isinstance(arg, ast.arg):
                inner.bind(arg.arg, None)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        ids = {id(child) for child in body}
        for child in ast.iter_child_nodes(node):
            yield (child, inner, inner) if id(child) in ids else (child, scope, around)
    elif isinstance(node, ast.ClassDef):
        inner = Scope(scope)
        ids = {id(child) for child in node.body}
        for child in ast.iter_child_nodes(node):
            yield (child, inner, around) if id(child) in ids else (child, scope, around)
    else:
        for child in ast.iter_child_nodes(node):
            yield child, scope, around


def _bind(node: ast.AST, scope: Scope, module: Scope) -> None:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.bind(target.id, node.value)
            else:
                _bind_all(target, scope)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
        if node.value is not None:
            scope.bind(node.target.id, node.value)
    elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
        _bind_all(node.target, scope)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _bind_all(node.optional_vars, scope)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope.bind(node.name, None)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        scope.bind(node.name, None)
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        scope.bind(node.name, None)
    elif isinstance(node, ast.Global | ast.Nonlocal):
        for name in node.names:
            module.bind(name, None)
            scope.bind(name, None)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            # `import torch.amp` binds torch alone.
            scope.bind(alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else _root(alias.name))
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            full = None if node.level else f"{node.module}.{alias.name}"
            scope.bind(alias.asname or alias.name, full)


def _bind_all(target: ast.AST, scope: Scope) -> None:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            scope.bind(node.id, None)


def _root(name: str) -> str:
    return name.partition(".")[0]

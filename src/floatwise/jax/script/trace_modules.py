# SPDX-License-Identifier: Apache-2.0
"""Module paths of equations, as they are in the parameters' paths."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ModuleNames"]

#: What Haiku puts between a module and those it makes in its constructor.
_CONSTRUCTED = "~"


class ModuleNames:
    """Learns from products of parameters what scopes and parameters' paths have in common.

    Flax's scopes begin with the model's class (`MLP`, `Dense_0`), its parameters' paths do not (`Dense_0.kernel`),
    and a loss of two models differentiates `generator.Dense_0.kernel` and `discriminator.Dense_0.kernel`.
    """

    def __init__(self) -> None:
        self._begins: dict[tuple[str, ...], tuple[str, ...]] = {}

    def learn(self, scopes: tuple[str, ...], parameter: str) -> None:
        """Takes note of an equation with a parameter."""
        module = tuple(parameter.split(".")[:-1])
        same = 0
        while same < min(len(scopes), len(module)) and scopes[-1 - same] == module[-1 - same]:
            same += 1
        is_model = not module and len(scopes) == 1 and scopes[0][:1].isupper()  # a parameter of the model's own
        if same or is_model:
            self._begins.setdefault(scopes[: len(scopes) - same], module[: len(module) - same])

    def module_of(self, scopes: tuple[str, ...], parameters: Sequence[str | None]) -> str:
        """Returns the module path of an equation.

        Args:
          scopes: Its scopes, outermost first.
          parameters: The parameters among its operands.
        """
        for parameter in parameters:
            if parameter is not None and "." in parameter:
                return parameter.rpartition(".")[0]
        for length in range(len(scopes), -1, -1):
            if scopes[:length] in self._begins:
                path = [*self._begins[scopes[:length]], *scopes[length:]]
                while path and path[-1] == _CONSTRUCTED:
                    path.pop()
                return ".".join(path)
        return ".".join(scopes)

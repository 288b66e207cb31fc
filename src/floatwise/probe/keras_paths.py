# SPDX-License-Identifier: Apache-2.0
"""Names of layers and variables while a Keras script trains: those that a plan's globs speak of."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from floatwise.keras.layer_paths import layer_paths

__all__ = ["Paths"]


class Paths:
    """Paths of layers within the outermost model that is being called, and of all variables.

    A plan is applied to each model by paths within it, so that layers of two models may share one.
    """

    def __init__(self) -> None:
        self._layers: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()
        # By the ids of the variable and of the tensor in it, which it holds; with the layer's path and the layer.
        self._variables: dict[int, tuple[str, Any, str, Any]] = {}

    def of(self, root: Any, layer: Any, above: str) -> str:
        """Returns the path of a layer.

        Args:
          root: The outermost model or layer.
          layer: The layer.
          above: Path of the layer that calls it, for one that no model knows.
        """
        if layer is root:
            return "" if isinstance(root, keras.Model) else str(layer.name)
        known = self._layers.get(root)
        if known is None or id(layer) not in known:
            known = self._layers[root] = self._named(root)
        if id(layer) not in known:
            return f"{above}.{layer.name}" if above else str(layer.name)
        return known[id(layer)]

    def learn(self, root: Any) -> None:
        """Names the variables of a model's layers, those of layers built since the last call too."""
        if any(id(variable) not in self._variables for variable in root.trainable_variables):
            self._named(root)

    def of_variable(self, variable: Any) -> str | None:
        """Returns the path of a Keras variable, or of the tensor in it; None for something else."""
        known = self._variables.get(id(variable))
        if known is None and isinstance(variable, keras.Variable):
            known = self._know(variable, str(variable.path).replace("/", "."), "", None)
        return known[0] if known else None

    def owner(self, variable: Any) -> tuple[str, Any]:
        """Returns the path of the layer whose variable this is, and the layer; None where it is not known."""
        known = self._variables.get(id(variable))
        return (known[2], known[3]) if known else ("", None)

    def named(self, variable: Any, number: int) -> str:
        """Returns the path of any variable."""
        name = str(getattr(variable, "name", "") or f"variable_{number}").partition(":")[0]
        return self.of_variable(variable) or name.replace("/", ".")

    def _named(self, root: Any) -> dict[int, str]:
        paths: dict[int, str] = {}
        prefix = "" if isinstance(root, keras.Model) else str(root.name)
        for path, layer in layer_paths(root).items():
            full = f"{prefix}.{path}".strip(".") if prefix else path
            paths.setdefault(id(layer), full)
            taken: set[str] = set()
            for variable in layer._trainable_variables:
                name, count = str(variable.name), 0
                while name in taken:
                    count += 1
                    name = f"{variable.name}_{count}"
                taken.add(name)
                if id(variable) not in self._variables:
                    self._know(variable, f"{full}.{name}" if full else name, full, layer)
        return paths

    def _know(self, variable: Any, name: str, path: str, layer: Any) -> tuple[str, Any, str, Any]:
        row = name, (variable, variable._value), path, layer
        self._variables[id(variable)] = self._variables[id(variable._value)] = row
        return row

# SPDX-License-Identifier: Apache-2.0
"""Where a Keras script's forward pass is: the layers that are being called, and what tensors were computed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from floatwise.probe.keras_paths import Paths
from floatwise.probe.keras_sites import Sites
from floatwise.probe.keras_watching import Watcher

__all__ = ["Frame", "Frames"]

#: Calls of one operator in one call of a layer that are sites of their own, as in PyTorch's tap.
_SITES_PER_OPERATOR = 16
#: Parts of the names of layers that compute in float32 inside, whatever their policy, and return small values; what
#: they look up or normalise comes from no product (Keras 3.15).
_FLOAT32_LAYERS = ("Normalization", "Softmax", "Embedding", "Discretization", "Hashing", "Lookup")


@dataclass
class Frame:
    """A call of a layer; of none outside of layers.

    Attributes:
      layer: The layer.
      root: The outermost model or layer.
      path: The layer's path.
      calls: Calls of each operator so far.
      products: Sites of the products in it so far.
      awaits_bias: Site of a layer's product whose bias is to be added, and the layer.
      has_own: Whether the layer's own product has been seen.
    """

    layer: Any
    root: Any
    path: str
    calls: Counter[str] = field(default_factory=Counter)
    products: set[str] = field(default_factory=set)
    awaits_bias: tuple[str, Any] | None = None
    has_own: bool = False

    @property
    def is_float32(self) -> bool:
        """Whether the layer computes in float32, whatever its policy."""
        return any(part in type(self.layer).__name__ for part in _FLOAT32_LAYERS)

    def number(self, name: str) -> str:
        """Counts a call of an operator and returns what tells its site from the first one's."""
        self.calls[name] += 1
        count = min(self.calls[name], _SITES_PER_OPERATOR)
        return "" if count == 1 else f"#{count}"


class Frames:
    """The calls under way, and what is looked at in them.

    Args:
      watcher: Of the backend.
      sites: Get what is seen.
      paths: Name layers and variables.
    """

    def __init__(self, watcher: Watcher, sites: Sites, paths: Paths) -> None:
        self.watcher = watcher
        self.sites = sites
        self.paths = paths
        self.stack: list[Frame] = []
        self.outside = Frame(None, None, "")
        #: True within an operator or a loss: what it is made of is not looked at.
        self.is_inside = False
        # Tensors by id, held so that the id stays theirs, with the products that they are computed from.
        self._sources: dict[int, tuple[Any, frozenset[str]]] = {}
        self._watched: dict[int, tuple[Any, list[str]]] = {}

    @property
    def current(self) -> Frame:
        """The innermost call."""
        return self.stack[-1] if self.stack else self.outside

    def hears(self) -> bool:
        """Returns whether what is computed now is looked at."""
        return not self.is_inside and self.watcher.is_training() and not in_symbolic_scope()

    def forget(self) -> None:
        """An update has come: what led to it is over."""
        self._sources.clear()
        self._watched.clear()

    def is_array(self, value: Any) -> bool:
        """Returns whether this can be looked at and is more than a number."""
        return self.watcher.is_floating(value) and len(value.shape) > 0

    def look_at_inputs(self, site: str, inputs: Sequence[Any], counts: bool) -> None:
        """Looks at operands; with `counts` that is a call of the site."""
        for number, value in enumerate(inputs):
            self.watcher.look(value, self.sites.heard(site, "input", counts=counts and not number))

    def watch(self, path: str, value: Any, sources: frozenset[str]) -> Any:
        """Looks at an output and its gradient; returns what takes its place."""
        if id(value) in self._watched:
            paths = self._watched[id(value)][1]
            if path not in paths:
                paths.append(path)  # a container returns what its last part returned
                self.watcher.look(value, self.sites.computed(path))
            return value
        paths = [path]
        gradient = self.sites.heard_all(paths, "grad_output")
        made = self.watcher.pass_through(value, self.sites.computed(path), gradient)
        if made is not value and (mask := get_keras_mask(value)) is not None:
            set_keras_mask(made, mask)
        self._watched[id(made)] = made, paths
        self.tag(made, sources)
        return made

    def tag(self, value: Any, sources: frozenset[str]) -> None:
        """Notes the products that a tensor is computed from."""
        if sources:
            self._sources[id(value)] = value, sources

    def tag_all(self, values: Any, sources: frozenset[str]) -> None:
        """Notes them of every tensor of a nested structure that has none yet."""
        if sources:
            for value in keras.tree.flatten(values):
                if self.watcher.is_floating(value) and id(value) not in self._sources:
                    self.tag(value, sources)

    def sources_of(self, values: Iterable[Any]) -> frozenset[str]:
        """Returns the products that tensors are computed from."""
        known = (self._sources.get(id(value)) for value in values)
        return frozenset().union(*(sources for _, sources in filter(None, known)))

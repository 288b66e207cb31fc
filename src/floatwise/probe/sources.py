# SPDX-License-Identifier: Apache-2.0
"""Which products a value comes from without leaving 16 bits: read from autograd's graph of a float32 run.

Under autocast a product's result has 16 bits, and code between products computes in the widest type of its operands:
what meets a float32 parameter, an embedding or a softmax is float32 from there on. A value that overflows between
two products is computed in float32 only when all the products it comes from are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

__all__ = ["SourceTracer"]

#: Parts of the names of autograd nodes whose results autocast computes in float32 on CUDA (ATen/autocast_mode.h,
#: torch 2.13). Batch normalisation is none of them, but what it returns is small again: nothing is traced through it.
_FLOAT32_NODES = ("Norm", "Softmax", "Exp", "Log", "Pow", "Sum", "Prod", "Rsqrt", "Loss", "Cdist", "Embedding")
#: How far a value is followed back through nodes that are not known yet.
_DEEPEST = 200


class SourceTracer:
    """Knows the results of products in the graphs of one iteration."""

    def __init__(self) -> None:
        # The nodes themselves, not their ids: autograd makes a new Python object for a node nobody holds.
        self._sources: dict[Any, frozenset[str] | None] = {}

    def made(self, site: str, outputs: Iterable[Tensor]) -> None:
        """A product has returned these tensors."""
        for output in outputs:
            if output.grad_fn is not None:
                self._sources[output.grad_fn] = frozenset({site})

    def made_float32(self, output: Tensor) -> None:
        """This tensor would be float32 under autocast, whatever it is computed from."""
        if output.grad_fn is not None:
            self._sources[output.grad_fn] = None

    def sources_of(self, value: Tensor) -> frozenset[str]:
        """Returns the sites whose 16-bit results `value` would be computed from; none where it would be float32."""
        return self._trace(value.grad_fn, _DEEPEST) or frozenset()

    def forget(self) -> None:
        """The iteration is over; its graphs may go."""
        self._sources.clear()

    def _trace(self, node: Any, depth: int) -> frozenset[str] | None:
        """Returns the sources of a node's result, or None when it would be float32."""
        if node is None or not depth:
            return None
        if node not in self._sources:
            self._sources[node] = self._combined(node, depth)
        return self._sources[node]

    def _combined(self, node: Any, depth: int) -> frozenset[str] | None:
        if any(part in node.name() for part in _FLOAT32_NODES):
            return None
        found: frozenset[str] = frozenset()
        for following, _ in node.next_functions:
            if following is None:
                continue  # a constant, which has no gradient
            sources = self._trace(following, depth - 1)
            if sources is None:
                return None
            found |= sources
        return found or None

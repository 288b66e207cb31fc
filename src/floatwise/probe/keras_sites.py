# SPDX-License-Identifier: Apache-2.0
"""Places that compute in a Keras script: rows that grow while it trains, and the values heard there."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatwise.probe.keras_shapes import ProductShape
from floatwise.probe.keras_watching import Hear
from floatwise.probe.recording import Site
from floatwise.probe.value_log import ValueLog

__all__ = ["Row", "Sites"]


@dataclass
class Row:
    """What is known of one place; see `floatwise.probe.recording.Site`."""

    kind: str
    matrix: bool = False
    shape: ProductShape | None = None
    calls: int = 0
    m: int = 0
    flops: float = 0.0
    weights: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    constant: float = 0.0


class Sites:
    """The rows by path, in the order of first use.

    Args:
      log: Gets the values.
    """

    def __init__(self, log: ValueLog) -> None:
        self.rows: dict[str, Row] = {}
        self.log = log
        self._lock = threading.Lock()

    def row(self, path: str, kind: str, matrix: bool = False) -> Row:
        """Returns the row of a place, made when it is new."""
        return self.rows.setdefault(path, Row(kind, matrix))

    def heard(self, path: str, role: str, counts: bool = False) -> Hear:
        """Returns what hears the values of a place in a role, and counts them as calls where asked to."""

        def hear(sample: NDArray[np.float32], elements: int, amax: float) -> None:
            self.log.add(path, role, sample, elements, amax)
            if counts:
                self._count(path, elements)

        return hear

    def heard_all(self, paths: list[str], role: str) -> Hear:
        """Returns what hears the values of several places that have one tensor; the list may still grow."""

        def hear(sample: NDArray[np.float32], elements: int, amax: float) -> None:
            for path in paths:
                self.log.add(path, role, sample, elements, amax)

        return hear

    def computed(self, path: str) -> Hear:
        """Returns what hears the outputs of a place, and counts its calls and FLOPs."""
        return self.heard(path, "output", counts=True)

    def _count(self, path: str, elements: int) -> None:
        with self._lock:
            row = self.rows[path]
            row.calls += 1
            if row.shape is not None and row.shape.n:
                row.m = max(row.m, elements // (row.shape.width or row.shape.n))
                row.flops += row.shape.element_flops * elements

    def sites(self, iterations: int) -> tuple[Site, ...]:
        """Returns what was seen in so many iterations."""
        seen = [(path, row) for path, row in self.rows.items() if row.calls]  # others were traced and never run
        return tuple(self._site(path, row, max(iterations, 1)) for path, row in seen)

    def _site(self, path: str, row: Row, iterations: int) -> Site:
        shape: Any = row.shape
        return Site(
            path=path,
            kind=row.kind,
            parent=_parent(path),
            matrix=row.matrix,
            calls=row.calls,
            m=row.m,
            n=shape.n if shape and row.m else 0,
            k=shape.k if shape and row.m else 0,
            flops=round(row.flops / iterations),
            weights=tuple(sorted(row.weights)),
            sources=tuple(sorted(row.sources - {path})),
            constant=row.constant,
        )


def _parent(path: str) -> str:
    module, operator, _ = path.partition(":")
    return module if operator else module.rpartition(".")[0]

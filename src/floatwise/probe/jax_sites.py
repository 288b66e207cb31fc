# SPDX-License-Identifier: Apache-2.0
"""The sites of all programs that a JAX script differentiates, as one list."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable

from floatwise.probe.jax_flow import SiteRow
from floatwise.probe.recording import Site

__all__ = ["SiteBook"]


class SiteBook:
    """Keeps the sites of each differentiated function, and how often its gradient was taken.

    A function that is traced again, for a last batch that is smaller, keeps the shapes of its largest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[Hashable, dict[str, SiteRow]] = {}
        self._runs: Counter[Hashable] = Counter()
        self._examples: dict[Hashable, int] = {}

    def traced(self, key: Hashable, sites: dict[str, SiteRow]) -> None:
        """Takes note of the sites of a function."""
        with self._lock:
            known = self._rows.setdefault(key, {})
            for path, row in sites.items():
                if path not in known or known[path].flops <= row.flops:
                    known[path] = row

    def forget(self, key: Hashable) -> None:
        """Drops the sites of a function whose values could not be had."""
        with self._lock:
            self._rows.pop(key, None)

    def ran(self, key: Hashable, examples: int) -> None:
        """Takes note of a gradient that was taken, of so many examples mapped over at once (1 without `vmap`)."""
        with self._lock:
            self._runs[key] += 1
            self._examples[key] = max(examples, self._examples.get(key, 1))

    def calls(self, key: Hashable, path: str, under_way: bool) -> int:
        """Returns how often a site of a function was called in all its runs, and in one that is under way."""
        with self._lock:
            row = self._rows.get(key, {}).get(path)
            return 0 if row is None else row.calls * (self._runs[key] + under_way)

    def sites(self, iterations: int) -> tuple[Site, ...]:
        """Returns every site over so many iterations, in the order of first use."""
        merged: dict[str, Site] = {}
        with self._lock:
            for key, rows in self._rows.items():
                runs, examples = self._runs[key], self._examples.get(key, 1)
                for path, row in rows.items() if runs else ():
                    flops = row.flops * examples * runs // max(iterations, 1)
                    site = _site(path, row, examples, row.calls * runs, flops)
                    merged[path] = _both(merged[path], site) if path in merged else site
        return tuple(merged.values())


def _site(path: str, row: SiteRow, examples: int, calls: int, flops: int) -> Site:
    return Site(
        path=path,
        kind=row.kind,
        parent=row.parent,
        matrix=row.matrix,
        calls=calls,
        m=row.m * examples,
        n=row.n,
        k=row.k,
        flops=flops,
        weights=tuple(sorted(row.weights)),
        sources=tuple(sorted(row.sources)),
        constant=row.constant,
    )


def _both(first: Site, second: Site) -> Site:
    """Returns one site for a network that two functions run, as a GAN's do."""
    larger = max(first, second, key=lambda site: site.flops)
    return Site(
        path=first.path,
        kind=first.kind,
        parent=first.parent,
        matrix=first.matrix,
        calls=first.calls + second.calls,
        m=larger.m,
        n=larger.n,
        k=larger.k,
        flops=first.flops + second.flops,
        weights=tuple(sorted({*first.weights, *second.weights})),
        sources=tuple(sorted({*first.sources, *second.sources})),
        constant=first.constant or second.constant,
    )

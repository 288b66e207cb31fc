# SPDX-License-Identifier: Apache-2.0
"""The products of a training step: intent and fact side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floatwise.census.finding import Finding
from floatwise.census.operator import Operator, formats, share, to_message
from floatwise.census.widened import widened_products

__all__ = ["OperatorCensus"]


@dataclass(frozen=True, kw_only=True)
class OperatorCensus:
    """The products of a function.

    Attributes:
      traced: What the program asks for: from a jaxpr, where a product inside `scan` counts once a turn, from
        TensorFlow's graph, or from PyTorch's operators.
      compiled: What runs on this backend, from XLA's optimised program; a product in a loop counts once. None when it
        was not compiled by XLA: the backend's own kernels then compute what is asked for.
      backend: For which backend: `cpu`, `gpu`, `tpu`.
    """

    traced: tuple[Operator, ...]
    compiled: tuple[Operator, ...] | None
    backend: str

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What to know about formats that are asked for and not run; empty when nothing was compiled."""
        return widened_products(self)

    def formats(self, compiled: bool = False) -> dict[str, int]:
        """Returns how many products there are by the formats of their operands, such as `bfloat16*bfloat16`."""
        return formats((self.compiled or ()) if compiled else self.traced)

    def share(self, dtype: str, compiled: bool = False) -> float:
        """Returns the share of multiplications whose operands are all of a format, from 0 to 1; 0 without products."""
        return share((self.compiled or ()) if compiled else self.traced, dtype)

    def to_message(self) -> dict[str, Any]:
        """Returns what `floatwise.planner.decision.Products` holds, as JSON."""
        return {
            "asked": to_message(self.traced),
            "ran": None if self.compiled is None else to_message(self.compiled),
            "backend": self.backend,
        }

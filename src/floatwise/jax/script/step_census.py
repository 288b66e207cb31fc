# SPDX-License-Identifier: Apache-2.0
"""The products of a script's compiled training step: as it is traced, and as XLA runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.backend import get_backend

from floatwise.census import Operator, OperatorCensus, compiled_operators
from floatwise.jax.census.operators import traced_operators

__all__ = ["StepCensus"]

#: What XLA keeps of an operation's origin when it belongs to a backward pass: the transpose of a linearised function.
_BACKWARD = "transpose("


class StepCensus:
    """Looks at the first compiled call that takes gradients.

    Attributes:
      traced: Its products as the program asks for them; None before that call, and where it cannot be traced again.
    """

    def __init__(self) -> None:
        self.traced: tuple[Operator, ...] | None = None
        self._looked = False

    def look(self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Takes a jitted function that trains, with the arguments that it was called with."""
        if self._looked or not hasattr(compiled, "trace"):
            return
        self._looked = True
        try:
            self.traced = traced_operators(compiled.trace(*args, **kwargs).jaxpr)
        except Exception:  # of whatever the script traces: the training itself goes on
            self.traced = None

    def to_message(self) -> dict[str, Any] | None:
        """Returns what `floatwise.planner.decision.Products` holds, as JSON; None where no compiled step was seen."""
        if self.traced is None:
            return None
        rows = [row for text in _training_programs() for row in compiled_operators(text)]
        census = OperatorCensus(traced=self.traced, compiled=tuple(rows) or None, backend=jax.default_backend())
        return census.to_message()


def _training_programs() -> list[str]:
    """Returns the optimised programs of this process that hold a backward pass; the one with the most products."""
    programs = [module.to_string() for held in get_backend().live_executables() for module in held.hlo_modules()]
    backward = [text for text in programs if _BACKWARD in text]
    return sorted(backward, key=_work)[-1:]


def _work(text: str) -> int:
    return sum(row.multiplications * row.count for row in compiled_operators(text))

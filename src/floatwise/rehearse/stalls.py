# SPDX-License-Identifier: Apache-2.0
"""Updates that do not arrive: weights that stay as they are although their gradient is not zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn

from floatwise.rehearse.module_trace import sampled
from floatwise.torch.masters import float32_value, stored_of

__all__ = ["StallMeter"]


class StallMeter:
    """Compares a sample of each parameter, or of its master, before and after every update."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._before: dict[str, tuple[Tensor, Tensor]] = {}
        self._wanted: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()

    def before(self) -> None:
        """The gradients are there and the update is about to happen."""
        self._before = {
            name: (sampled(_exact(parameter)), sampled(parameter.grad) != 0)
            for name, parameter in self._parameters.items()
            if parameter.grad is not None and not parameter.grad.is_sparse
        }

    def after(self) -> None:
        """The update has happened."""
        for name, (weights, wanted) in self._before.items():
            self._wanted[name] += int(wanted.sum())
            self._lost[name] += int((wanted & (sampled(_exact(self._parameters[name])) == weights)).sum())

    @property
    def shares(self) -> dict[str, float]:
        """Share of the updates with a gradient that changed nothing, by parameter."""
        return {name: self._lost[name] / wanted for name, wanted in self._wanted.items() if wanted}


def _exact(parameter: nn.Parameter) -> Tensor:
    return float32_value(parameter) if stored_of(parameter) is not None else parameter

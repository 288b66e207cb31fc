# SPDX-License-Identifier: Apache-2.0
"""Who made a step be skipped: the parameters with non-finite gradients, and what to do about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.torch.scaling.evidence import local_values

__all__ = ["NonFiniteGradient", "non_finite_gradients", "skip_report"]

# Parameters that a message names.
_MOST_NAMED = 5


@dataclass(frozen=True)
class NonFiniteGradient:
    """A parameter with a gradient that is not finite.

    Attributes:
      name: Its name in the watched model; else the name its optimizer knows; else its place in the optimizer.
      module: The class of the module it belongs to; empty when no watched model has it.
      shape: Its shape.
      infinite: How many values of its gradient are infinite; of a sharded one, of this rank's part.
      nan: How many are NaN.
      values: How many there are.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    infinite: int
    nan: int
    values: int

    def __str__(self) -> str:
        kinds = ((self.infinite, "infinite"), (self.nan, "NaN"))
        counts = " and ".join(f"{count:,} {kind}" for count, kind in kinds if count)
        module = f"{self.module}, " if self.module else ""
        return f"{self.name} ({module}shape {list(self.shape)}, {counts} of {self.values:,} values)"


def non_finite_gradients(
    optimizers: Iterable[Optimizer], models: Iterable[nn.Module] = ()
) -> tuple[list[NonFiniteGradient], int]:
    """Returns the non-finite gradients and how many gradients there are. Waits for the device.

    Args:
      optimizers: Their parameters are looked at, or those of the models when there is no optimizer.
      models: Where names are taken from.

    Returns:
      The last parameter of a model comes first: it is the nearest to the loss in most, and backward passes carry what
      is not finite on to all before it.
    """
    models = list(models)
    named = {id(p): (name, owner, place) for place, (name, owner, p) in enumerate(_named(models))}
    placed = list(_placed(optimizers)) or [(name, p) for name, _, p in _named(models)]
    found: list[tuple[int, NonFiniteGradient]] = []
    seen = 0
    for order, (place, parameter) in enumerate(placed):
        if parameter.grad is None:
            continue
        seen += 1
        values = local_values(parameter.grad.detach())
        infinite, nan = (int(count) for count in torch.stack([values.isinf().sum(), values.isnan().sum()]).tolist())
        if infinite or nan:
            name, module, order = named.get(id(parameter), (place, "", order))
            found.append(
                (order, NonFiniteGradient(name, module, tuple(parameter.shape), infinite, nan, values.numel()))
            )
    return [gradient for _, gradient in sorted(found, key=lambda item: -item[0])], seen


def skip_report(
    gradients: Sequence[NonFiniteGradient],
    total: int,
    *,
    skips: int,
    scale: float,
    can_fall: bool,
    loss_was_bad: bool,
) -> str:
    """Returns what has happened, where, and what to do.

    Args:
      gradients: The non-finite gradients.
      total: How many gradients there are.
      skips: How many steps in a row were skipped.
      scale: The loss scale of the last of them.
      can_fall: Whether backing off can lower the scale further.
      loss_was_bad: Whether its loss was not finite.
    """
    steps = f"{skips} steps in a row were" if skips > 1 else "a step was"
    end = "is still falling" if can_fall else "falls no further"
    text = f"{steps} skipped for gradients that are not finite, at loss scale {scale:g}, which {end}"
    if gradients:
        named = "; ".join(map(str, gradients[:_MOST_NAMED]))
        more = f"; and {len(gradients) - _MOST_NAMED} more" if len(gradients) > _MOST_NAMED else ""
        text += f". Not finite are {len(gradients)} of {total} gradients, the last parameter first: {named}{more}"
    elif total:
        text += f". All {total} gradients of this process are finite: another rank has the others, or the loop itself "
        text += "asked for the skip"
    return f"{text}. {_advice(can_fall, loss_was_bad)}"


def _advice(can_fall: bool, loss_was_bad: bool) -> str:
    if loss_was_bad:
        return (
            "The loss was not finite either, which no loss scale cures: look at the inputs, keep the module where the "
            "forward pass first overflows in float32, or train in bfloat16"
        )
    if can_fall:
        return "Start with a smaller init_scale"
    return (
        "The loss was finite, so they arise in the backward pass: keep the module named first in float32, or train in "
        "bfloat16; torch.autograd.set_detect_anomaly(True) names an operation that makes NaN"
    )


def _named(models: Iterable[nn.Module]) -> Iterator[tuple[str, str, Tensor]]:
    for model in models:
        for path, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                yield f"{path}.{name}" if path else name, type(module).__name__, parameter


def _placed(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    for number, optimizer in enumerate(optimizers):
        for group_number, group in enumerate(optimizer.param_groups):
            names = group.get("param_names")  # of an optimizer that was given named_parameters()
            for place, parameter in enumerate(group["params"]):
                where = f"parameter {place} of group {group_number} of {type(optimizer).__name__}"
                if number:
                    where += f" (optimizer {number})"
                yield names[place] if names else where, parameter

# SPDX-License-Identifier: Apache-2.0
"""Bytes of what training keeps from step to step, in closed form: weights, masters, gradients, optimizer states.

No framework is imported: a recording made elsewhere is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floatwise.errors import BadInputError
from floatwise.plan import Plan

__all__ = ["Sharding", "StateBytes", "WeightCounts", "optimizer_slots", "state_bytes"]

#: Bytes of a master beside each 16-bit weight, by mode; see `floatwise.torch.masters`.
_MASTER_BYTES = {"none": 0, "float32": 4, "split": 2, "kahan": 2, "stochastic": 0}

Settings = Mapping[str, Any]

#: How many numbers of the weight's shape an optimizer keeps for each weight, from its settings. By reading
#: torch.optim 2.13; `test_memory_states.py` compares each with the optimizer's own state.
_SLOTS: Mapping[str, Callable[[Settings], int]] = {
    "ASGD": lambda s: 1,
    "Adadelta": lambda s: 2,
    "Adagrad": lambda s: 1,
    "Adam": lambda s: 3 if s.get("amsgrad") else 2,
    "AdamW": lambda s: 3 if s.get("amsgrad") else 2,
    "Adamax": lambda s: 2,
    "Lion": lambda s: 1,  # Chen et al. 2023, arXiv 2302.06675: one momentum
    "Muon": lambda s: 1,
    "NAdam": lambda s: 2,
    "RAdam": lambda s: 2,
    "RMSprop": lambda s: 1 + bool(s.get("momentum")) + bool(s.get("centered")),
    "Rprop": lambda s: 2,
    "SGD": lambda s: int(bool(s.get("momentum"))),
}


@dataclass(frozen=True)
class WeightCounts:
    """How many weights a model has, as the plan stores them.

    Attributes:
      trained_16_bit: Elements of trained parameters stored in 16 bits.
      trained_float32: Elements of the other trained parameters.
      frozen_bytes: Bytes of parameters that take no gradient, without masters.
      frozen_with_master: Elements of frozen parameters that have a master all the same.
      buffer_bytes: Bytes of buffers.
      unit: Elements of the largest part that FSDP gathers at once; by default the whole model.
    """

    trained_16_bit: int
    trained_float32: int
    frozen_bytes: int = 0
    frozen_with_master: int = 0
    buffer_bytes: int = 0
    unit: int = 0

    @property
    def trained(self) -> int:
        """Elements of all trained parameters."""
        return self.trained_16_bit + self.trained_float32


@dataclass(frozen=True)
class Sharding:
    """How several processes share a model.

    Attributes:
      kind: `none`; `ddp`, each process has all of it; `fsdp`, each has its part of weights, gradients and states
        (`fully_shard`, and ZeRO stage 3).
      world_size: Processes.
      gradients_as_views: DDP's `gradient_as_bucket_view`; False, its default, keeps gradients a second time in its
        buckets.
      unit: Elements of the largest part that is wrapped with `fully_shard`; 0 for what `WeightCounts` has.
    """

    kind: Literal["none", "ddp", "fsdp"] = "none"
    world_size: int = 1
    gradients_as_views: bool = False
    unit: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise BadInputError(f"got world_size {self.world_size}; expected the number of processes, from 1")

    def share(self, size: int) -> int:
        """Returns the part of a sharded size that one process holds."""
        return math.ceil(size / self.world_size) if self.kind == "fsdp" else size


@dataclass(frozen=True)
class StateBytes:
    """Bytes on one process; gradients as they are when the backward pass has ended.

    Attributes:
      weights_bytes: Parameters as stored, and buffers.
      masters_bytes: What stands beside 16-bit weights.
      gradients_bytes: Gradients of all trained parameters.
      optimizer_bytes: The optimizer's states.
      exchange_bytes: DDP's buckets, or what FSDP gathers and reduces at once.
    """

    weights_bytes: int
    masters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    exchange_bytes: int


def optimizer_slots(optimizer: str, settings: Settings) -> int | None:
    """Returns how many numbers an optimizer keeps for each weight; None where its class is not known.

    Args:
      optimizer: Name of its class ("AdamW").
      settings: A parameter group's settings; of interest: `momentum`, `amsgrad`, `centered`.
    """
    rule = _SLOTS.get(optimizer)
    return None if rule is None else rule(settings)


def state_bytes(
    counts: WeightCounts, plan: Plan, slots: float, sharding: Sharding | None = None, *, sums: bool = False
) -> StateBytes:
    """Returns what one process keeps from step to step.

    Args:
      counts: The model's weights, as the plan stores them.
      plan: Gives the masters, and the formats that are gathered and reduced.
      slots: Numbers the optimizer keeps for each weight; they are float32 under every plan.
      sharding: By default one process.
      sums: Gradients of several micro-batches are summed, which 16-bit weights do in float32.
    """
    sharding = sharding or Sharding()
    low, high = counts.trained_16_bit, counts.trained_float32
    weights = 2 * low + 4 * high + counts.frozen_bytes
    # Unscaling replaces float16 gradients by float32 ones; see `masters.gradients.raise_float16_grad`.
    low_gradient = 4 if sums or plan.policy.param_dtype == "float16" else 2
    gradients = low_gradient * low + 4 * high
    masters = _MASTER_BYTES[plan.weights.master] * (low + counts.frozen_with_master)
    return StateBytes(
        weights_bytes=sharding.share(weights) + counts.buffer_bytes,
        masters_bytes=sharding.share(masters),
        gradients_bytes=sharding.share(gradients),
        optimizer_bytes=sharding.share(round(4 * slots * counts.trained)),
        exchange_bytes=_exchange(counts, plan, sharding, gradients),
    )


def _exchange(counts: WeightCounts, plan: Plan, sharding: Sharding, gradients: int) -> int:
    if sharding.kind == "ddp":
        return 0 if sharding.gradients_as_views else gradients
    if sharding.kind == "none" or sharding.world_size == 1:
        return 0
    unit = sharding.unit or counts.unit or counts.trained
    compute = 4 if plan.compute_dtype == "float32" else 2
    reduce = 4 if plan.reductions.reduce_dtype == "float32" else 2
    # The unit that computes and the one that is prefetched, and a unit's gradients on their way to their owners.
    return unit * (2 * compute + compute + reduce)

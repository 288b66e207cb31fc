# SPDX-License-Identifier: Apache-2.0
"""The operators and the memory of a training step under a plan, recorded in one run on fake tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.plan import Plan, recipe
from floatwise.rehearse.memory import Loss, record_memory
from floatwise.rehearse.memory_curve import MemoryRecord
from floatwise.rehearse.memory_states import state_bytes
from floatwise.rehearse.roofline import Operator
from floatwise.rehearse.roofline_record import OperatorRecorder
from floatwise.rehearse.step_record import StepRecord
from floatwise.torch import MasterWeights
from floatwise.torch.masters import granularity_of

__all__ = ["masters_operators", "record_step"]


def record_step(
    model: nn.Module,
    inputs: Tensor | tuple[Any, ...],
    optimizer: Optimizer,
    plan: Plan,
    *,
    loss: Loss | None = None,
    device_type: str = "cpu",
) -> StepRecord:
    """Runs one training step on fake tensors and returns its operators and its memory.

    Under a plan with float8 products it is recorded in bfloat16, as everything else there computes.

    Args:
      model: As in `predict_memory`, as are all others.
      inputs: The batch.
      optimizer: The optimizer.
      plan: The plan.
      loss: The loss.
      device_type: Where the training is to run.

    Raises:
      BadInputError: As `predict_memory`.
      PlanError: As `predict_memory`.
    """
    recorded = plan if plan.scaling is None else recipe("bf16-mixed", modules=plan.modules)
    recorder = OperatorRecorder()
    memory = record_memory(model, inputs, optimizer, recorded, loss=loss, device_type=device_type, beside=recorder)
    inner = optimizer.optimizer if isinstance(optimizer, MasterWeights) else optimizer
    operators = (*recorder.operators, *masters_operators(memory, recorded, inner))
    return StepRecord(plan.recipe, memory, operators)


def masters_operators(memory: MemoryRecord, plan: Plan, optimizer: Optimizer) -> tuple[Operator, ...]:
    """Returns what is done to 16-bit weights beside what an optimizer is seen to do to float32 stand-ins.

    In one pass over stretches, all is read and all but gradients written. Otherwise values and gradients become
    float32, and values 16-bit again.

    Args:
      memory: Counts the weights.
      plan: The plan.
      optimizer: The optimizer, without masters of its own.
    """
    in_one_pass = granularity_of(optimizer) == "part"
    low = memory.weights.trained_16_bit
    if plan.weights.master == "none" or not low:
        return ()
    states = state_bytes(replace(memory.weights, trained_float32=0, buffer_bytes=0), plan, memory.slots)
    kept = states.weights_bytes + states.masters_bytes
    moved = 2 * kept + states.gradients_bytes + (2 * states.optimizer_bytes if in_one_pass else 12 * low)
    return (Operator("floatwise.masters", "float32", False, 10 * low, moved),)

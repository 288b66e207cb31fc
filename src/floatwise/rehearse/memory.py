# SPDX-License-Identifier: Apache-2.0
"""The peak of tensor memory that training under a plan would have, predicted from fake tensors and a closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.plan import Plan
from floatwise.rehearse.memory_curve import MemoryRecord, OldGradients
from floatwise.rehearse.memory_fakes import FakeTraining, fake_training
from floatwise.rehearse.memory_prediction import MemoryPrediction, peak_memory
from floatwise.rehearse.memory_record import MemoryRecorder, storages_bytes
from floatwise.rehearse.memory_states import Sharding, WeightCounts
from floatwise.rehearse.memory_update import fake_update, slots_of, stretch_bytes
from floatwise.torch import apply_islands, autocast_region
from floatwise.torch.cuda_policy import CudaPolicy
from floatwise.torch.weight_cache import keeps_gradients

__all__ = ["Loss", "count_weights", "predict_memory", "record_memory"]

Loss = Callable[..., Tensor]
"""Called with the model and the batch; returns the loss."""


def predict_memory(
    model: nn.Module,
    inputs: Tensor | tuple[Any, ...],
    optimizer: Optimizer,
    plan: Plan,
    *,
    loss: Loss | None = None,
    old_gradients: OldGradients = "dropped",
    sharding: Sharding | None = None,
    device_type: str = "cpu",
) -> MemoryPrediction:
    """Predicts the peak of tensor memory of one process, from the second training step on.

    One step runs on fake tensors, which have shapes and formats and no elements: autocast, islands and autograd do
    as they would, and nothing of the model's size is allocated. Weights, masters, gradients and optimizer states
    come from a closed form. See `MemoryPrediction` for what is left out.

    Args:
      model: The model: real, on the `meta` device, or of fake tensors.
      inputs: A batch of the same kinds; its sizes count, its values do not.
      optimizer: The optimizer of all of the model's trained parameters. It does not step.
      plan: The plan.
      loss: Called with the model and the batch; by default the model itself returns the loss, alone, as `loss`, or
        under the key "loss".
      old_gradients: `dropped`, the default, where `zero_grad` comes before the forward pass or after the step;
        `in_forward` where it comes between the passes; `kept` with `zero_grad(set_to_none=False)`.
      sharding: By default one process.
      device_type: Where the training is to run; it decides how much the optimizer takes at once.

    Raises:
      BadInputError: There is no loss, or the model looks at values, which fake tensors have not.
      PlanError: The runtime cannot apply the plan.
    """
    record = record_memory(model, inputs, optimizer, plan, loss=loss, device_type=device_type)
    return peak_memory(replace(record, old_gradients=old_gradients), plan, sharding=sharding)


def record_memory(
    model: nn.Module,
    inputs: Tensor | tuple[Any, ...],
    optimizer: Optimizer,
    plan: Plan,
    *,
    loss: Loss | None = None,
    device_type: str = "cpu",
    beside: AbstractContextManager[Any] | None = None,
) -> MemoryRecord:
    """Runs one training step on fake tensors and returns what it would have in memory.

    Args:
      model: As in `predict_memory`, as are `inputs`, `optimizer`, `plan`, `loss` and `device_type`.
      inputs: The batch.
      optimizer: The optimizer.
      plan: The plan.
      loss: The loss.
      device_type: Where the training is to run.
      beside: Open during the step, such as an `OperatorRecorder`.

    Raises:
      BadInputError: As `predict_memory`.
      PlanError: As `predict_memory`.
    """
    keeps_gradients()  # it tries something out the first time, which is not part of the step
    beside = beside or nullcontext()
    training = fake_training(model, optimizer, inputs if isinstance(inputs, tuple) else (inputs,), plan)
    batch = [t for t in training.inputs if isinstance(t, Tensor)]
    parameters = list(training.model.parameters())
    recorder = MemoryRecorder(parameters, [*training.model.buffers(), *batch])
    try:
        with training.mode, CudaPolicy(), recorder:
            with beside:
                _forward_and_backward(training, plan, loss, recorder)
            recorder.note_gradients()
            recorder.phase = "update"
            states = fake_update(training.optimizer, training.stored, device_type, beside)
            recorder.note_states(states)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise BadInputError(
            f"got a model or loss that looks at values of tensors ({error}), which fake tensors do not have; "
            "record a step of the real model with MemoryRecorder instead"
        ) from error
    return MemoryRecord(
        moments=recorder.moments(),
        inputs_bytes=storages_bytes(batch),
        update_bytes=max(recorder.update_bytes(), stretch_bytes(training.optimizer, training.stored, device_type)),
        slots=slots_of(training.optimizer, states, (p for p in parameters if p.grad is not None)),
        weights=count_weights(training.model, training.stored),
    )


def _forward_and_backward(training: FakeTraining, plan: Plan, loss: Loss | None, recorder: MemoryRecorder) -> None:
    apply_islands(training.model, plan, "cpu")
    with autocast_region(plan, "cpu"):
        value = _loss_of(loss(training.model, *training.inputs) if loss else training.model(*training.inputs))
    recorder.phase = "backward"
    value.backward()


def _loss_of(output: Any) -> Tensor:
    value = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise BadInputError(
            f"got {shape} from the model; expected its loss, one number: give loss=lambda model, *batch: …"
        )
    return value


def count_weights(model: nn.Module, stored: Iterable[Tensor]) -> WeightCounts:
    """Counts the weights of a model.

    Args:
      model: The model, its weights in the formats that a plan stores them in.
      stored: Its parameters that have masters.
    """
    with_master = {id(p) for p in stored}
    trained = [p for p in model.parameters() if p.requires_grad]
    frozen = [p for p in model.parameters() if not p.requires_grad]
    low = sum(p.numel() for p in trained if p.itemsize == 2)
    return WeightCounts(
        trained_16_bit=low,
        trained_float32=sum(p.numel() for p in trained) - low,
        frozen_bytes=storages_bytes(frozen),
        frozen_with_master=sum(p.numel() for p in frozen if id(p) in with_master),
        buffer_bytes=storages_bytes(model.buffers()),
        unit=_unit(model),
    )


def _unit(model: nn.Module) -> int:
    """Returns the elements of what FSDP gathers at once where each member of a list is wrapped, and the rest is."""
    members = [m for parent in model.modules() if isinstance(parent, nn.ModuleList) for m in parent]
    inside = {id(p): p.numel() for member in members for p in member.parameters()}
    rest = sum(p.numel() for p in model.parameters() if id(p) not in inside)
    return max([rest, *(sum(p.numel() for p in member.parameters()) for member in members)])

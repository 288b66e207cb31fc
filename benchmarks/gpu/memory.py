# SPDX-License-Identifier: Apache-2.0
"""Part 3: the predicted peak of tensor memory against the measured one."""

from __future__ import annotations

import gc
from typing import Any

import torch
from benchmarks.gpu.models import Model, model_of
from benchmarks.gpu.part import Part

from floatwise.plan import Plan, recipe
from floatwise.rehearse.memory import predict_memory
from floatwise.rehearse.memory_prediction import KNOWN_ERROR, MemoryPrediction
from floatwise.torch import prepare
from floatwise.torch.script.peak_memory import PeakMemoryMeter

__all__ = ["MODELS", "RECIPES", "run"]

MODELS = ("text_gpt, large batch", "digits_cnn, large batch", "translator", "perceptron")
RECIPES = ("fp32", "bf16-mixed", "bf16-master")

#: Steps that are trained; the last one is measured, when states and gradients are as they stay.
_STEPS = 5


def run(part: Part) -> None:
    """Predicts and measures four models under three recipes. Nothing is required: the known error is a CPU's."""
    errors = []
    if part.device == "cuda":
        _warm_up()
    for name in MODELS:
        model = model_of(name, part.size)
        for recipe_name in RECIPES:
            what = f"{model.name}, {recipe_name}"
            if not part.has_time_for(what, 1 if part.is_tiny else 4):
                continue
            with part.attempting(f"memory, {what}"):
                predicted = predict(model, recipe(recipe_name), part.device)
                measured = measure(model, recipe(recipe_name), part.device)
                errors.append(predicted.peak_bytes / measured["tensor_bytes"] - 1)
                _give(part, what, predicted, measured, errors[-1])
    if errors:
        worst = max(errors, key=abs)
        within = sum(abs(error) <= KNOWN_ERROR for error in errors)
        part.row(
            f"largest error {worst:+.1%}; {within} of {len(errors)} within the {KNOWN_ERROR:.0%} that hold on CPUs",
            what="largest error",
            error=worst,
            within_known_error=within,
            cases=len(errors),
        )


def predict(model: Model, plan: Plan, device: str) -> MemoryPrediction:
    """Predicts the peak for a model on the `meta` device.

    Args:
      model: The model.
      plan: The plan.
      device: Where the training is to run.
    """
    with torch.device("meta"):
        made = model.make()
    return predict_memory(made, model.batch(0), model.optimizer(made), plan, loss=model.loss, device_type=device)


def measure(model: Model, plan: Plan, device: str) -> dict[str, Any]:
    """Trains some steps and returns the peak of the last one.

    It is less what was there before the model was made, such as cuBLAS's workspaces on CUDA. There, what the allocator
    had reserved is given beside it.

    Args:
      model: The model.
      plan: The plan.
      device: Where to train.
    """
    model.made()  # a copy is kept beside the training and is no part of it
    before = _live_bytes(device)
    module = model.made().to(device)
    precision = prepare(module, model.optimizer(module), plan)
    batch = [t.to(device) for t in model.batch(0)]
    meter = PeakMemoryMeter()
    for index in range(_STEPS):
        if index == _STEPS - 2 and device == "cpu":
            meter.begin()
        if index == _STEPS - 1:
            _mark(meter, device)
        with precision.forward():
            loss = model.loss(module, *batch)
        precision.backward(loss)
        precision.step()
        precision.zero_grad()
        loss.item()
        del loss
    if device == "cuda":
        found: dict[str, Any] = {
            "tensor_bytes": torch.cuda.max_memory_allocated() - before,
            "before_bytes": before,
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
    else:
        meter.end()
        peak = meter.peak_bytes or 0
        found = {"tensor_bytes": peak - before, "before_bytes": before, "reserved_bytes": None}
    precision.close()
    del module, precision, batch
    return found


def _live_bytes(device: str) -> int:
    gc.collect()
    if device == "cuda":
        return torch.cuda.memory_allocated()
    meter = PeakMemoryMeter()
    meter.begin()
    meter.mark()
    meter.end()
    return meter.peak_bytes or 0


def _mark(meter: PeakMemoryMeter, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        meter.mark()


def _warm_up() -> None:
    """Makes the libraries take their workspaces, in this thread and in the backward pass's, before anything counts."""
    for dtype in (torch.float32, torch.bfloat16):
        layer = torch.nn.Linear(64, 64, device="cuda", dtype=dtype)
        layer(torch.ones(64, 64, device="cuda", dtype=dtype)).sum().backward()
    torch.cuda.synchronize()


def _give(part: Part, what: str, predicted: MemoryPrediction, measured: dict[str, Any], error: float) -> None:
    mib = [size / 2**20 for size in (predicted.peak_bytes, measured["tensor_bytes"])]
    part.row(
        f"{what:38} predicted {mib[0]:9.2f} MiB, measured {mib[1]:9.2f} MiB, {error:+.1%}; {predicted.phase}",
        what=what,
        error=error,
        measured=measured,
        predicted=predicted.to_json(),
    )

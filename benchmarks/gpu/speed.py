# SPDX-License-Identifier: Apache-2.0
"""Part 4: the predicted speed of each recipe over float32 against the measured one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from benchmarks.gpu.clock import ratio, take_turns
from benchmarks.gpu.machine import device_row
from benchmarks.gpu.models import Model, model_of
from benchmarks.gpu.part import Part

from floatwise.hardware import Device
from floatwise.plan import Plan, recipe
from floatwise.rehearse.roofline import SpeedPrediction, predict_speed
from floatwise.rehearse.roofline_here import measured_rates
from floatwise.rehearse.roofline_rates import Rates
from floatwise.rehearse.roofline_step import record_step
from floatwise.torch import prepare

__all__ = ["MODELS", "TINY_MODELS", "predict", "rates_of", "run", "settled", "training"]

MODELS = ("text_gpt", "text_gpt, large batch", "gpt_100m", "digits_cnn, large batch", "perceptron")
TINY_MODELS = ("text_gpt", "digits_cnn", "perceptron")
BASELINE = "fp32"

#: Seconds a model is estimated to take on an H200, with what is recorded of it on the CPU.
_ESTIMATED_SECONDS = 15
_WARM_UP, _ROUNDS = 4, 25


def run(part: Part) -> None:
    """Predicts from the device's row and measures steps that take turns. Nothing is required of the errors."""
    recipes: tuple[str, ...] = ("fp32", "tf32", "bf16-mixed", "fp16-mixed")
    if part.device == "cpu":
        recipes = ("fp32", "bf16-mixed")
        part.left_out(
            "tf32 and fp16-mixed", "needs CUDA: a CPU computes the one in float32, and the other by conversion"
        )
    rates = rates_of(part)
    for name in TINY_MODELS if part.is_tiny else MODELS:
        if not part.has_time_for(name, 1 if part.is_tiny else _ESTIMATED_SECONDS):
            continue
        model = model_of(name, part.size)
        with part.attempting(f"speed, {model.name}"):
            plans = {name: recipe(name) for name in recipes}
            predicted = predict(model, plans, rates, part.device) if rates is not None else {}
            times = _measured(part, model, plans)
            for recipe_name in plans:
                _give(part, model.name, recipe_name, times, predicted.get(recipe_name))


def rates_of(part: Part) -> Device | Rates | None:
    """Returns the device's row, or a CPU's own rates, or None with the reason in the results."""
    if part.device == "cpu":
        return measured_rates()
    row = device_row()
    if row is None:
        part.left_out(
            "predictions of speed",
            f"floatwise.hardware has no row for {torch.cuda.get_device_name()}; 'One more …' in "
            "docs/architecture.md says how to add one",
        )
    return row


def predict(model: Model, plans: Mapping[str, Plan], rates: Device | Rates, device: str) -> dict[str, SpeedPrediction]:
    """Predicts the speed of each plan over the baseline's.

    Args:
      model: The model; a step of it is recorded on fake tensors.
      plans: By recipe, the baseline among them.
      rates: The device's row, or rates.
      device: Where the training is to run.
    """
    records = {}
    for name, plan in plans.items():
        with torch.device("meta"):
            made = model.make()
        records[name] = record_step(
            made, model.batch(0), model.optimizer(made), plan, loss=model.loss, device_type=device
        ).operators
    return {
        name: predict_speed(records[name], records[BASELINE], rates, plan, plans[BASELINE])
        for name, plan in plans.items()
    }


def training(model: Model, plan: Plan, device: str, stack: ExitStack) -> Callable[[], None]:
    """Returns what trains one step, always on the same batch, as `floatwise.torch.prepare` has it.

    Args:
      model: The model.
      plan: The plan.
      device: Where to train.
      stack: Ends the training when it is closed.
    """
    module = model.made().to(device)
    precision = prepare(module, model.optimizer(module), plan)
    stack.callback(precision.close)
    batch = [t.to(device) for t in model.batch(0)]

    def step() -> None:
        with precision.forward():
            loss = model.loss(module, *batch)
        precision.backward(loss)
        precision.step()
        precision.zero_grad()

    return step


def _measured(part: Part, model: Model, plans: Mapping[str, Plan]) -> dict[str, list[float]]:
    rounds, seconds = (3, 5.0) if part.is_tiny else (_ROUNDS, _ESTIMATED_SECONDS / 2)
    with ExitStack() as stack:
        runs = {name: training(model, settled(plan), part.device, stack) for name, plan in plans.items()}
        return take_turns(runs, part.device, warm_up=_WARM_UP, rounds=rounds, seconds=seconds)


def settled(plan: Plan) -> Plan:
    """Returns a plan whose loss scale is small enough that no step is skipped, as it is after the first steps."""
    if plan.loss_scale is None:
        return plan
    return plan.model_copy(update={"loss_scale": plan.loss_scale.model_copy(update={"initial_scale": 2.0**10})})


def _give(
    part: Part, model: str, name: str, times: Mapping[str, list[float]], predicted: SpeedPrediction | None
) -> None:
    measured = ratio(times[BASELINE], times[name])
    milliseconds, error = 1e3 * statistics.median(times[name]), None
    text = f"{model:24} {name:11} a step {milliseconds:8.2f} ms"
    if predicted is not None:
        text += f", predicted {1e3 * predicted.planned.seconds:8.2f}"
    if name != BASELINE:
        text += f"; over float32 {measured.median:5.2f} ({measured.low:.2f} to {measured.high:.2f})"
        if predicted is not None:
            error = predicted.ratio / measured.median - 1
            text += f", predicted {predicted.ratio:5.2f} ({predicted.low:.2f} to {predicted.high:.2f}), {error:+.0%}"
    part.row(
        text,
        model=model,
        recipe=name,
        measured_ratio=measured._asdict(),
        milliseconds=milliseconds,
        rounds=len(times[name]),
        predicted=predicted.to_json() if predicted is not None else None,
        error=error,
    )

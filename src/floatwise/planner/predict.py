# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of a recipe on a device, reckoned from the steps that rehearsals recorded."""

from __future__ import annotations

from floatwise.errors import BadInputError
from floatwise.hardware import Device
from floatwise.plan import Plan, recipe
from floatwise.planner.decision import Predicted
from floatwise.planner.rehearsed import Rehearsed
from floatwise.rehearse.memory_prediction import peak_memory
from floatwise.rehearse.roofline import SpeedPrediction, predict_speed
from floatwise.rehearse.step_record import StepRecord

__all__ = ["WORTHWHILE_MEMORY", "WORTHWHILE_SPEED", "is_worthwhile", "predict"]

#: What mixed precision must bring, the noise of a measurement being a few per cent: speed, or a good part of the
#: memory.
WORTHWHILE_SPEED, WORTHWHILE_MEMORY = 1.05, 0.85
#: Share of the device's memory that float32 must fill before a saving counts: below it, nobody is short of memory.
_NOTABLE_MEMORY = 0.05


def predict(plan: Plan, rehearsed: Rehearsed, device: Device, float8_share: float = 1.0) -> Predicted | None:
    """Returns what a plan would bring on a device; None when no step was recorded under it.

    Args:
      plan: The plan.
      rehearsed: Holds the recorded steps.
      device: The target's row.
      float8_share: Share of the FLOPs of products that float8 recipes compute in float8, 0 to 1.
    """
    float32, planned = rehearsed.step_records.get("fp32"), _record(plan, rehearsed)
    if float32 is None or planned is None:
        return None
    memory = peak_memory(planned.memory, plan)
    largest = max(device.memory_gib, default=None)
    return Predicted(
        speed=_speed(planned, float32, device, plan, float8_share),
        memory=memory,
        float32_memory=peak_memory(float32.memory, recipe("fp32")),
        fits=None if largest is None else memory.peak_bytes <= largest * 2**30,
    )


def is_worthwhile(predicted: Predicted, device: Device) -> bool:
    """Returns whether a prediction leaves room for a gain: in speed, or in memory that is not plentiful anyway.

    The device's peaks decide: what is lost by training in float32 where 16 bits would have been twice as fast is more
    than what is lost the other way round.

    Args:
      predicted: The prediction.
      device: The target's row.
    """
    largest = max(device.memory_gib, default=0.0) * 2**30
    fills = not largest or predicted.float32_memory.peak_bytes >= _NOTABLE_MEMORY * largest
    if predicted.speed is None or (fills and predicted.memory_ratio <= WORTHWHILE_MEMORY):
        return True
    return predicted.speed.high >= WORTHWHILE_SPEED


def _record(plan: Plan, rehearsed: Rehearsed) -> StepRecord | None:
    # TF32 changes no tensor. What float8 is emulated with is no part of the training: all else there is bfloat16.
    stands_in = "fp32" if plan.recipe == "tf32" else "bf16-mixed" if plan.scaling is not None else plan.recipe
    return rehearsed.step_records.get(stands_in)


def _speed(
    planned: StepRecord, float32: StepRecord, device: Device, plan: Plan, float8_share: float
) -> SpeedPrediction | None:
    try:
        return predict_speed(
            planned.operators, float32.operators, device, plan, recipe("fp32"), float8_share=float8_share
        )
    except BadInputError:  # the row of a CPU: its rates depend on the machine
        return None

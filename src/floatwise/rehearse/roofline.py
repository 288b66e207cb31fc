# SPDX-License-Identifier: Apache-2.0
"""How long a training step would take on a device: the roofline model over the operators of a recorded step.

Every operator takes as long as its arithmetic at the device's peak rate for the format, or as moving its operands
and results at the memory's bandwidth, whichever is longer (Williams, Waterman and Patterson 2009). No framework is
imported. All results are predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from floatwise.errors import BadInputError
from floatwise.hardware import Device
from floatwise.plan import Plan
from floatwise.rehearse.float8_scaling import get_float8_scaling
from floatwise.rehearse.roofline_rates import OPTIMISTIC, PESSIMISTIC, TYPICAL, Rates, device_rates

__all__ = ["KNOWN_RATIO_ERROR", "Operator", "SpeedPrediction", "StepSeconds", "predict_speed", "predict_step_seconds"]

#: Largest relative error of the predicted ratio in `benchmarks/speed_prediction.py`: of digits_cnn on an EPYC with
#: AVX-512 BF16, torch 2.13, whose small bfloat16 convolutions reach less than large ones; the GPT, the translator and
#: the perceptron there were within 0.2.
KNOWN_RATIO_ERROR = 0.7


@dataclass(frozen=True)
class Operator:
    """Calls of one operator with the same sizes.

    Attributes:
      name: PyTorch's name ("aten.addmm").
      format: Format of its operands ("bfloat16"); of the widest for element-wise operators.
      matrix: True when a matrix unit can run it.
      flops: Of one call; one multiply-add is 2.
      bytes: Read and written by one call.
      calls: Calls in one training step.
    """

    name: str
    format: str
    matrix: bool
    flops: int
    bytes: int
    calls: int = 1

    def to_json(self) -> dict[str, Any]:
        """Returns plain values; `Operator(**values)` reads them."""
        return asdict(self)


@dataclass(frozen=True)
class StepSeconds:
    """The predicted time of a step, and where it goes.

    Attributes:
      seconds: Of the step: the longer of the two below where the device works beside the host, else their sum.
      device_seconds: Sum over operators of the longer of arithmetic and memory traffic.
      host_seconds: Time to start all operators.
      matrix_seconds: Part of `device_seconds` in matrix products and convolutions.
      arithmetic_share: Share of `device_seconds` in operators that arithmetic bounds and not memory.
    """

    seconds: float
    device_seconds: float
    host_seconds: float
    matrix_seconds: float
    arithmetic_share: float

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, marked as predicted."""
        return {"predicted": True, **asdict(self)}


@dataclass(frozen=True)
class SpeedPrediction:
    """Steps per second under a plan over those in float32, predicted; never a measurement.

    Attributes:
      device: Id of the device's row; empty for measured rates.
      ratio: Planned steps per second over float32's; above 1 is faster.
      low: The ratio where operators reach little of the device's peaks, or the start of operators decides.
      high: The ratio at the device's peaks.
      planned: The step under the plan.
      float32: The step in float32.
      known_error: Largest relative error of `ratio` found on the CPU it was tried on, for four models, with that CPU's
        measured rates in place of a row. For GPUs it is not established.
    """

    device: str
    ratio: float
    low: float
    high: float
    planned: StepSeconds
    float32: StepSeconds
    known_error: float = KNOWN_RATIO_ERROR

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, marked as predicted."""
        return {"predicted": True, **asdict(self)}


def predict_step_seconds(
    operators: Iterable[Operator], device: Device | Rates, plan: Plan, *, float8_share: float = 1.0
) -> StepSeconds:
    """Predicts how long one training step takes.

    Args:
      operators: A step recorded under the plan; the formats are the operators' own.
      device: A row of the hardware table, or rates.
      plan: Says how float32 operands are multiplied, and whether linear layers multiply in float8.
      float8_share: As in `predict_speed`.

    Raises:
      BadInputError: The row has no peak rates or no bandwidth; a share that is not from 0 to 1.
    """
    _check_share(float8_share)
    rates = device_rates(device) if isinstance(device, Device) else device
    return _step_seconds(tuple(operators), rates, plan, float8_share)


def predict_speed(
    planned: Iterable[Operator],
    float32: Iterable[Operator],
    device: Device | Rates,
    plan: Plan,
    baseline: Plan,
    *,
    float8_share: float = 1.0,
) -> SpeedPrediction:
    """Predicts the speed of a plan against float32.

    Args:
      planned: A step recorded under the plan.
      float32: The same step recorded in float32.
      device: A row of the hardware table, or rates, which give no bounds of their own.
      plan: The plan.
      baseline: The plan of the float32 run: `recipe("fp32")`, or `recipe("tf32")` where the script allows it.
      float8_share: Under a plan with float8 products, the share of the FLOPs of all products that are in linear layers
        which float8 can multiply, 0 to 1. Default 1: all products of two matrices, the most that there can be.

    Raises:
      BadInputError: As `predict_step_seconds`.
    """
    _check_share(float8_share)
    planned, float32 = tuple(planned), tuple(float32)
    ratios, steps = [], []
    for assumption in (TYPICAL, OPTIMISTIC, PESSIMISTIC):
        rates = device_rates(device, assumption) if isinstance(device, Device) else assumption.of(device)
        pair = _step_seconds(planned, rates, plan, float8_share), _step_seconds(float32, rates, baseline, 0.0)
        steps.append(pair)
        ratios.append(pair[1].seconds / pair[0].seconds if pair[0].seconds else 1.0)
    return SpeedPrediction(
        device=device.id if isinstance(device, Device) else "",
        ratio=ratios[0],
        low=min(ratios),
        high=max(ratios),
        planned=steps[0][0],
        float32=steps[0][1],
    )


def _step_seconds(operators: tuple[Operator, ...], rates: Rates, plan: Plan, float8_share: float) -> StepSeconds:
    device = host = matrix = arithmetic = 0.0
    for operator, calls in _with_float8(operators, plan, rates, float8_share):
        rate = rates.flops_per_second(operator.name, operator.format, operator.matrix, plan.float32_matmul)
        computing = operator.flops / rate
        moving = operator.bytes / rates.bytes_per_second
        seconds = calls * max(computing, moving, rates.kernel_seconds)
        device += seconds
        host += calls * rates.start_seconds
        matrix += seconds * operator.matrix
        arithmetic += seconds * (computing > max(moving, rates.kernel_seconds))
    total = max(device, host) if rates.is_asynchronous else device + host
    return StepSeconds(total, device, host, matrix, arithmetic / device if device else 0.0)


def _with_float8(
    operators: tuple[Operator, ...], plan: Plan, rates: Rates, share: float
) -> Iterator[tuple[Operator, float]]:
    """Yields operators and their calls; of 16-bit products of two matrices, as many in float8 as the share asks for.

    Which ones the operators do not tell: each gives the same part of its calls. For float8 the operands are read,
    scaled and written once more.
    """
    multiplied = [operator for operator in operators if _may_be_float8(operator)]
    possible = sum(operator.calls * operator.flops for operator in multiplied)
    wanted = share * sum(operator.calls * operator.flops for operator in operators if operator.matrix)
    part = 0.0
    if plan.scaling is not None and plan.compute_dtype in rates.matrix and possible:
        part = min(wanted / possible, 1.0)
        if not get_float8_scaling(plan.scaling).rounded_weight_gradient:
            part *= 2 / 3  # of a layer's three products one stays in 16 bits
    for operator in operators:
        converted = part * operator.calls if _may_be_float8(operator) else 0.0
        if converted:
            yield replace(operator, format=plan.compute_dtype, bytes=2 * operator.bytes), converted
        if converted < operator.calls:
            yield operator, operator.calls - converted


def _may_be_float8(operator: Operator) -> bool:
    return operator.matrix and operator.name in ("aten.mm", "aten.addmm")


def _check_share(share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise BadInputError(
            f"got float8_share={share!r}; expected a number from 0 to 1: the FLOPs of linear layers that float8 can "
            "multiply over those of all products"
        )

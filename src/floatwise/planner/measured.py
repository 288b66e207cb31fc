# SPDX-License-Identifier: Apache-2.0
"""A decision after the plan was tried on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter

from floatwise.errors import BadFileError
from floatwise.hardware import Device
from floatwise.language import Text
from floatwise.plan import recipe
from floatwise.planner.decide import decide_against
from floatwise.planner.decision import Decision, Finding, Measured, Status
from floatwise.planner.numbers import magnitude, percent
from floatwise.planner.predict import WORTHWHILE_MEMORY, WORTHWHILE_SPEED
from floatwise.planner.reasons import Reason
from floatwise.planner.targets import Target
from floatwise.probe.recording import Recording

__all__ = [
    "with_failure",
    "with_known_measurement",
    "with_measured",
    "with_measurement",
    "without_measurement",
]

#: The speed that a saving of memory may cost.
_TOLERABLE_SPEED = 0.95
#: Third over first quartile of neighbouring steps' ratios from which a measurement is called noisy; on an idle
#: machine it is under 1.1.
_NOISY_SPREAD = 1.5

#: Compilers add small products of their own, so shares are compared with some tolerance; chosen.
_SHARE_TOLERANCE = 0.01

_MEASURED = TypeAdapter(Measured)


def with_measurement(decision: Decision, measured: Measured, recording: Recording, device: Device) -> Decision:
    """Adds what was measured on this machine, and falls back to float32 where it speaks against the plan."""
    parity, memory = measured.loss_parity, measured.memory_ratio
    data = {
        "speed": f"{measured.speed_ratio:.2f}",
        "memory": "" if memory is None else Text(f", {memory:.2f}× the memory", f"，内存为 {memory:.2f} 倍"),
        "steps": len(measured.losses["planned"]),
    }
    if parity is not None:
        planned, low, high = (magnitude(x) for x in (parity.planned, *parity.spread))
        data.update(planned=planned, float32=magnitude(parity.float32[0]), low=low, high=high)
    decision = replace(decision, findings=(*_about_measurement(measured), *decision.findings))
    if parity is not None and not parity.within_spread:
        return _fallen_back(decision, measured, recording, device, "refused", Reason("loss_outside", data))
    saves = memory is not None and memory <= WORTHWHILE_MEMORY and measured.speed_ratio >= _TOLERABLE_SPEED
    slow = _not_faster(measured, data)
    if slow is not None and not saves:
        return _fallen_back(decision, measured, recording, device, "not_worth_it", slow)
    proof = [Reason("measured_faster", data)]
    if parity is not None:
        proof.append(Reason("loss_parity", data))
    return replace(decision, measured=measured, reasons=(*proof, *decision.reasons))


def _not_faster(measured: Measured, data: Mapping[str, Any]) -> Reason | None:
    """Returns why the measurement shows no gain of speed; None where it does."""
    if measured.speed_ratio < WORTHWHILE_SPEED:
        return Reason("measured_not_faster", data)
    products, dtype = measured.products, recipe(measured.recipe).compute_dtype
    if products is not None and products.ran is not None and products.share(dtype, ran=True) < _SHARE_TOLERANCE:
        return Reason("measured_without_products", {**data, "format": dtype, "backend": products.backend})
    slowest, fastest = measured.speed_spread
    if slowest < 1:  # more than a quarter of the pairs of steps lose
        return Reason("measured_unclear", {**data, "slowest": f"{slowest:.2f}", "fastest": f"{fastest:.2f}"})
    return None


def with_measured(recording: Recording, measured: Measured) -> Recording:
    """Returns the recording with a measurement in place of its own."""
    return replace(recording, measured=asdict(measured))


def with_known_measurement(decision: Decision, recording: Recording, target: Target) -> Decision:
    """Adds what the recording says was measured, where that was this recipe on this device.

    Raises:
      BadFileError: That part of the recording is damaged.
    """
    if recording.measured is None or not target.here or decision.plan.is_float32:
        return without_measurement(decision, recording, target)
    try:
        measured = _MEASURED.validate_python(recording.measured)
    except ValueError as error:
        raise BadFileError(
            "damaged recording: its measurement cannot be read; record again with `floatwise plan SCRIPT`"
        ) from error
    if (measured.recipe, measured.device) != (decision.recipe, target.device.name):
        return without_measurement(decision, recording, target)
    return with_measurement(decision, measured, recording, target.device)


def without_measurement(decision: Decision, recording: Recording, target: Target) -> Decision:
    """Stays in float32 where only a measurement could show a gain: XLA widens 16-bit products on CPUs."""
    uses_xla = "jax" in (recording.framework, recording.backend)
    if not uses_xla or target.device.kind != "cpu" or decision.plan.compute_dtype == "float32":
        return decision
    reason = Reason("xla_on_cpu", {"recipe": decision.recipe, "format": decision.plan.compute_dtype})
    return decide_against(decision, recording, target.device, "not_worth_it", reason)


def with_failure(decision: Decision, failure: str, recording: Recording, device: Device) -> Decision:
    """Falls back to float32 because the script failed under the plan.

    Args:
      decision: What was to be tried.
      failure: `path:line: what happened`.
      recording: The probed run.
      device: This machine's row.
    """
    reason = Reason("script_failed", {"recipe": decision.recipe, "failure": failure})
    return decide_against(decision, recording, device, "refused", reason)


def _about_measurement(measured: Measured) -> tuple[Finding, ...]:
    found = []
    low, high = measured.speed_spread
    if low > 0 and high / low >= _NOISY_SPREAD:
        data = {"low": f"{low:.2f}", "high": f"{high:.2f}"}
        found.append(Finding("warning", "", Reason("measurement_noisy", data)))
    return (*found, *_about_products(measured))


def _about_products(measured: Measured) -> Iterator[Finding]:
    products, dtype = measured.products, recipe(measured.recipe).compute_dtype
    if products is None or dtype == "float32":
        return
    asked, ran = products.share(dtype), products.share(dtype, ran=True)
    data = {"recipe": measured.recipe, "format": dtype, "asked": percent(asked), "backend": products.backend}
    if not asked:
        yield Finding("warning", "", Reason("no_product_in_format", data))
    elif products.ran is not None and ran < asked - _SHARE_TOLERANCE:
        yield Finding("warning", "", Reason("products_widened", {**data, "ran": percent(ran)}))


def _fallen_back(
    decision: Decision, measured: Measured, recording: Recording, device: Device, status: Status, reason: Reason
) -> Decision:
    fallback = decide_against(decision, recording, device, status, reason)
    return replace(fallback, measured=measured, findings=(*_about_measurement(measured), *fallback.findings))

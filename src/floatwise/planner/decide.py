# SPDX-License-Identifier: Apache-2.0
"""From a recording and a target to a decision: every recipe is judged, the best accepted one is chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import PurePath

from floatwise.hardware import Device
from floatwise.language import Text
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, escape_module, recipe
from floatwise.planner.decision import Decision, Finding, Measured, Verdict
from floatwise.planner.evidence import evidence_rows
from floatwise.planner.findings import findings
from floatwise.planner.judge import judge
from floatwise.planner.numbers import magnitude, percent
from floatwise.planner.reasons import Reason
from floatwise.probe.recording import Recording

__all__ = ["decide", "with_failure", "with_measurement"]

#: In the order they are preferred where both are accepted: bfloat16 needs neither loss scale nor islands.
_PREFERENCE = ("bf16-mixed", "fp16-mixed", "tf32", "fp32")
_ALL = (*_PREFERENCE, "bf16-master", "fp16-master", "fp8-tensorwise", "fp8-rowwise")
#: Below this, starting the operators of a step takes many times longer than computing them on any GPU: 10 MFLOPs
#: are a microsecond at 10 TFLOP/s, and one kernel launch takes several.
_TINY_FLOPS = 1e7
#: What mixed precision must bring here, the noise of the measurement being a few per cent: speed, or a good part of
#: the memory at hardly any cost in speed.
_WORTHWHILE_SPEED, _WORTHWHILE_MEMORY, _TOLERABLE_SPEED = 1.05, 0.85, 0.95
#: Third over first quartile of neighbouring steps' ratios from which a measurement is called noisy; on an idle
#: machine it is under 1.1.
_NOISY_SPREAD = 1.5


def decide(recording: Recording, device: Device, here: bool, wanted_steps: int) -> Decision:
    """Judges every recipe for a device from what a float32 run has shown.

    Args:
      recording: The probed run.
      device: The target's row.
      here: True when the target is this machine's device, so that a measurement can follow.
      wanted_steps: Iterations that were asked for.
    """
    verdicts = {name: judge(name, recording, device) for name in _ALL}
    obstacle = _obstacle(recording, here)
    if obstacle is not None:
        for name in _ALL:
            if name != "fp32" and verdicts[name].status == "accepted":
                status = "refused" if obstacle.code == "baseline_not_finite" else "not_worth_it"
                verdicts[name] = replace(verdicts[name], status=status, reasons=(obstacle,))  # type: ignore[arg-type]
    chosen = next(verdicts[name] for name in _PREFERENCE if verdicts[name].status == "accepted")
    reasons = _why(chosen, verdicts, recording, device, here, obstacle)
    return _decision(recording, device, here, chosen, verdicts, reasons, wanted_steps)


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
        return _fall_back(decision, measured, recording, device, "refused", Reason("loss_outside", data))
    saves = memory is not None and memory <= _WORTHWHILE_MEMORY and measured.speed_ratio >= _TOLERABLE_SPEED
    if measured.speed_ratio < _WORTHWHILE_SPEED and not saves:
        return _fall_back(decision, measured, recording, device, "not_worth_it", Reason("measured_not_faster", data))
    proof = [Reason("measured_faster", data)]
    if parity is not None:
        proof.append(Reason("loss_parity", data))
    return replace(decision, measured=measured, reasons=(*proof, *decision.reasons))


def with_failure(decision: Decision, failure: str, recording: Recording, device: Device) -> Decision:
    """Falls back to float32 because the script failed under the plan.

    Args:
      decision: What was to be tried.
      failure: `path:line: what happened`.
      recording: The probed run.
      device: This machine's row.
    """
    reason = Reason("script_failed", {"recipe": decision.recipe, "failure": failure})
    return _fall_back(decision, None, recording, device, "refused", reason)


def _about_measurement(measured: Measured) -> tuple[Finding, ...]:
    low, high = measured.speed_spread
    if low <= 0 or high / low < _NOISY_SPREAD:
        return ()
    return (Finding("warning", "", Reason("measurement_noisy", {"low": f"{low:.2f}", "high": f"{high:.2f}"})),)


def _fall_back(
    decision: Decision, measured: Measured | None, recording: Recording, device: Device, status: str, reason: Reason
) -> Decision:
    verdicts = {
        v.recipe: replace(v, status=status, reasons=(reason, *v.reasons)) if v.recipe == decision.recipe else v  # type: ignore[arg-type]
        for v in decision.verdicts
    }
    fallback = _decision(recording, device, True, verdicts["fp32"], verdicts, (reason,), decision.steps)
    if measured is None:
        return fallback
    return replace(fallback, measured=measured, findings=(*_about_measurement(measured), *fallback.findings))


def _obstacle(recording: Recording, here: bool) -> Reason | None:
    for step, loss in enumerate(recording.losses):
        if not math.isfinite(loss) and not _had_no_loss(recording):
            return Reason("baseline_not_finite", {"loss": "NaN" if math.isnan(loss) else "inf", "step": step})
    if recording.parameter_dtype == "float64":
        return Reason("float64_model")
    flops = 3 * sum(site.flops for site in recording.matrix_sites)
    if not recording.matrix_sites:
        return Reason("no_products")
    if here:
        return None  # measured rather than guessed
    if flops < _TINY_FLOPS:
        return Reason("tiny_model", {"flops": magnitude(float(flops))})
    return None


def _had_no_loss(recording: Recording) -> bool:
    return all(math.isnan(loss) for loss in recording.losses) and not any(
        s.nonfinite for s in recording.role("weight_grad").values()
    )


def _why(
    chosen: Verdict,
    verdicts: dict[str, Verdict],
    recording: Recording,
    device: Device,
    here: bool,
    obstacle: Reason | None,
) -> tuple[Reason, ...]:
    reasons = list(chosen.reasons)
    if chosen.recipe == "fp32":
        sixteen = any(device.has_matrix(f) and f not in device.unreliable for f in ("bfloat16", "float16"))
        reasons = [obstacle] if obstacle is not None else []
        if not sixteen:
            reasons.insert(0, Reason("no_16_bit_unit", {"device": device.name}))
            if "float16" in device.unreliable:
                reasons += verdicts["fp16-mixed"].reasons
        elif obstacle is None:
            reasons += [reason for name in ("bf16-mixed", "fp16-mixed") for reason in verdicts[name].reasons]
    elif recording.matrix_share:
        reasons.append(Reason("matrix_share", {"share": percent(recording.matrix_share)}))
    if not here:
        reasons.append(Reason("nothing_run_there", {"device": device.name}))
    return tuple(reasons)


def _decision(
    recording: Recording,
    device: Device,
    here: bool,
    chosen: Verdict,
    verdicts: dict[str, Verdict],
    reasons: tuple[Reason, ...],
    wanted_steps: int,
) -> Decision:
    plan = _plan(chosen, recording, device, reasons)
    better = Reason("better_accepted", {"better": chosen.recipe})
    final = {
        name: replace(v, reasons=(better, *v.reasons)) if v.status == "accepted" and name != "fp32" else v
        for name, v in verdicts.items()
    }
    final[chosen.recipe] = replace(chosen, status="chosen")
    accepted = [v.recipe for v in final.values() if v.status in ("chosen", "accepted")]
    ordered = sorted(final.values(), key=lambda v: (v.status != "chosen", v.recipe not in accepted))
    return Decision(
        target=device.id,
        target_name=device.name,
        here=here,
        recipe=chosen.recipe,
        plan=plan,
        reasons=reasons,
        verdicts=tuple(ordered),
        findings=findings(recording, plan, device, here, wanted_steps),
        evidence=evidence_rows(recording),
        script=recording.script,
        arguments=recording.arguments,
        steps=recording.steps,
        parameters=recording.parameters,
        matrix_share=recording.matrix_share,
        islands=chosen.islands,
        loss_scale=chosen.loss_scale,
    )


def _plan(chosen: Verdict, recording: Recording, device: Device, reasons: tuple[Reason, ...]) -> Plan:
    plan = recipe(chosen.recipe)
    changes: dict[str, object] = {"target": device.id, "script": PurePath(recording.script).name}
    if chosen.loss_scale is not None:
        initial = chosen.loss_scale.initial
        changes["loss_scale"] = LossScale(
            initial_scale=initial,
            floor=min(1.0, initial),
            ceiling=max(2.0**24, initial),
            window_log2=chosen.loss_scale.window_log2,
        )
    float32 = Policy(param_dtype="float32", compute_dtype="float32", output_dtype="float32")
    changes["modules"] = tuple(
        ModulePolicy(module=escape_module(island.module), policy=float32, reason=str(island.reason))
        for island in chosen.islands
    )
    changes["evidence"] = {
        "steps": recording.steps,
        "parameters": recording.parameters,
        "reasons": [str(reason) for reason in reasons],
        "versions": dict(recording.versions),
    }
    return recipe(plan.recipe, **changes)

# SPDX-License-Identifier: Apache-2.0
"""From a recording and a target to a decision: every recipe is judged, the best accepted one is chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import PurePath

from floatwise.hardware import Device
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, escape_module, recipe
from floatwise.planner.candidates import FLOAT8_RECIPES
from floatwise.planner.decision import Decision, Status, Verdict
from floatwise.planner.evidence import evidence_rows
from floatwise.planner.findings import about_rehearsals, findings, recurrent_modules
from floatwise.planner.float8_share import recorded_float8_share
from floatwise.planner.judge import judge
from floatwise.planner.numbers import gibibytes, magnitude, percent
from floatwise.planner.predict import is_worthwhile, predict
from floatwise.planner.reasons import Reason
from floatwise.planner.rehearsal_verdict import with_rehearsal
from floatwise.planner.rehearsed import Rehearsed
from floatwise.probe.recording import Recording

__all__ = ["decide", "decide_against"]

#: In the order they are preferred where both are accepted: bfloat16 needs neither loss scale nor islands.
_PREFERENCE = ("bf16-mixed", "fp16-mixed", "tf32", "fp32")
_ALL = (*_PREFERENCE, "bf16-master", "fp16-master", *FLOAT8_RECIPES)
#: Below this, starting the operators of a step takes many times longer than computing them on any GPU: 10 MFLOPs
#: are a microsecond at 10 TFLOP/s, and one kernel launch takes several. For where no step was recorded to predict from.
_TINY_FLOPS = 1e7


def decide(
    recording: Recording, device: Device, here: bool, wanted_steps: int, rehearsed: Rehearsed | None = None
) -> Decision:
    """Judges every recipe for a device from what a float32 run, and rehearsals, have shown.

    Args:
      recording: The probed run.
      device: The target's row.
      here: True when the target is this machine's device, so that a measurement can follow.
      wanted_steps: Iterations that were asked for.
      rehearsed: Rehearsals of the script; none by default.
    """
    rehearsed = rehearsed or Rehearsed()
    verdicts = {name: _judged(name, recording, device, here, rehearsed) for name in _ALL}
    bfloat16, float16 = verdicts["bf16-mixed"], verdicts["fp16-mixed"]
    if bfloat16.status == "not_worth_it" and float16.status == "accepted" and float16.predicted is None:
        # No device with both multiplies float16 faster.
        verdicts["fp16-mixed"] = replace(float16, status="not_worth_it", reasons=bfloat16.reasons[:1])
    obstacle = _obstacle(recording, here or bool(rehearsed.step_records))
    if obstacle is not None:
        for name in _ALL:
            if name != "fp32" and verdicts[name].status == "accepted":
                status: Status = "refused" if obstacle.code == "baseline_not_finite" else "not_worth_it"
                verdicts[name] = replace(verdicts[name], status=status, reasons=(obstacle,))
    chosen = _chosen(verdicts, device)
    reasons = _why(chosen, verdicts, recording, device, here, obstacle)
    decision = _decision(recording, device, here, chosen, verdicts, reasons, wanted_steps)
    return replace(decision, findings=(*about_rehearsals(decision, rehearsed, recording), *decision.findings))


def decide_against(
    decision: Decision, recording: Recording, device: Device, status: Status, reason: Reason
) -> Decision:
    """Falls back to float32 on this machine, because its recommendation did not stand the trial.

    Args:
      decision: What was recommended.
      recording: The probed run.
      device: This machine's row.
      status: What the recipe comes to now.
      reason: Why.
    """
    verdicts = {
        v.recipe: replace(v, status=status, reasons=(reason, *v.reasons)) if v.recipe == decision.recipe else v
        for v in decision.verdicts
    }
    return _decision(recording, device, True, verdicts["fp32"], verdicts, (reason,), decision.steps)


def _judged(name: str, recording: Recording, device: Device, here: bool, rehearsed: Rehearsed) -> Verdict:
    verdict = with_rehearsal(judge(name, recording, device), rehearsed)
    if verdict.status != "accepted":
        return verdict
    predicted = predict(recipe(name), rehearsed, device, recorded_float8_share(recording))
    if predicted is None or recurrent_modules(recording):
        return verdict
    verdict = replace(verdict, predicted=predicted)
    if here or name == "fp32" or is_worthwhile(predicted, device):
        return verdict  # here it is measured rather than guessed
    assert predicted.speed is not None  # is_worthwhile
    speed = predicted.speed
    data = {"recipe": name, "device": device.name, "ratio": f"{speed.ratio:.2f}", "high": f"{speed.high:.2f}"}
    reason = Reason("predicted_not_faster", data)
    return replace(verdict, status="not_worth_it", reasons=(reason, *verdict.reasons))


def _chosen(verdicts: dict[str, Verdict], device: Device) -> Verdict:
    chosen = next(verdicts[name] for name in _PREFERENCE if verdicts[name].status == "accepted")
    smaller = verdicts["bf16-master"]
    if smaller.status != "accepted" or smaller.predicted is None or not smaller.predicted.fits:
        return chosen
    if chosen.predicted is None or chosen.predicted.fits is not False:
        return chosen
    data = {
        "recipe": chosen.recipe,
        "peak": gibibytes(chosen.predicted.memory.peak_bytes),
        "smaller": gibibytes(smaller.predicted.memory.peak_bytes),
        "device": device.name,
        "memory": f"{max(device.memory_gib):g} GiB",
    }
    return replace(smaller, reasons=(Reason("fits_with_masters", data), *smaller.reasons))


def _obstacle(recording: Recording, speed_is_known: bool) -> Reason | None:
    for step, loss in enumerate(recording.losses):
        if not math.isfinite(loss) and not _had_no_loss(recording):
            return Reason("baseline_not_finite", {"loss": "NaN" if math.isnan(loss) else "inf", "step": step})
    if recording.parameter_dtype == "float64":
        return Reason("float64_model")
    flops = 3 * sum(site.flops for site in recording.matrix_sites)
    if not recording.matrix_sites:
        return Reason("no_products")
    if speed_is_known:
        return None  # measured or predicted rather than guessed
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
            reasons += _against(verdicts["bf16-mixed"], verdicts["fp16-mixed"])
    elif recording.matrix_share:
        reasons.append(Reason("matrix_share", {"share": percent(recording.matrix_share)}))
    if chosen.recipe == "tf32":
        reasons += _against(verdicts["bf16-mixed"], verdicts["fp16-mixed"])
    if not here:
        reasons.append(Reason("nothing_run_there", {"device": device.name}))
    return tuple(reasons)


def _against(*verdicts: Verdict) -> list[Reason]:
    """Returns what speaks against recipes, each once, and nothing of what spoke for them before."""
    found: dict[str, Reason] = {}
    for verdict in verdicts:
        reasons = verdict.reasons
        if verdict.status == "not_worth_it":
            reasons = reasons[:1]
        elif verdict.rehearsal is not None:
            reasons = tuple(reason for reason in reasons if reason.code == "rehearsal_refused")
        found.update((str(reason), reason) for reason in reasons)
    return list(found.values())


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
        findings=findings(recording, plan, device, here, wanted_steps, final),
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

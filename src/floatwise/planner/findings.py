# SPDX-License-Identifier: Apache-2.0
"""What the reader should know about the script beside the decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from floatwise.hardware import Device
from floatwise.plan import Plan
from floatwise.planner.decision import Decision, Finding, Verdict
from floatwise.planner.numbers import gibibytes, percent
from floatwise.planner.predict import WORTHWHILE_SPEED
from floatwise.planner.reasons import Reason
from floatwise.planner.rehearsed import Rehearsed
from floatwise.planner.silent_failures import silent_failures
from floatwise.probe.recording import Recording

__all__ = ["about_rehearsals", "findings", "recurrent_modules"]

#: Layers that PyTorch computes by one operator on a GPU and the rehearsal by many.
_RECURRENT = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "lstm", "gru", "rnn_tanh", "rnn_relu")

#: Kinds of modules and operators that CUDA's autocast computes in float32 (ATen/autocast_mode.h, torch 2.13);
#: BatchNorm has no entry there and keeps float32 statistics by itself.
_FLOAT32_KINDS = (
    "LayerNorm",
    "RMSNorm",
    "GroupNorm",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy_with_logits",
)

#: Below this share of time in products even a matrix unit of infinite speed gains less than 1.18 times (Amdahl).
_SMALL_MATRIX_SHARE = 0.15


def findings(
    recording: Recording, plan: Plan, device: Device, here: bool, wanted_steps: int, verdicts: Mapping[str, Verdict]
) -> tuple[Finding, ...]:
    """Returns the findings, warnings first."""
    rows = [
        *_about_rehearsals(verdicts.values()),
        *_about_memory(verdicts[plan.recipe], device),
        *(() if here else _about_speed(verdicts, plan.recipe, device)),
        *(() if here else _about_prediction(recording, plan, device)),
        *_about_script(recording, plan),
        *_about_run(recording, wanted_steps),
        *silent_failures(recording),
        *_about_worth(recording, plan, here),
        *_about_shapes(recording, plan, device),
        *_kept_in_float32(recording, plan),
    ]
    return tuple(sorted(rows, key=lambda f: f.severity != "warning"))


def about_rehearsals(decision: Decision, rehearsed: Rehearsed, recording: Recording) -> Iterator[Finding]:
    """Yields what a rehearsal could not do, or was not asked to."""
    if rehearsed.impossible:
        yield Finding("warning", "", Reason("rehearsal_impossible", {"failure": rehearsed.impossible}))
    elif rehearsed.losses and decision.plan.compute_dtype != "float32" and not rehearsed.knows(decision.recipe):
        data = {"recipe": decision.recipe, "script": decision.script, "target": decision.target}
        yield Finding("warning", "", Reason("not_rehearsed", data))
    modules = recurrent_modules(recording)
    if modules and rehearsed.step_records:
        yield Finding("note", "", Reason("recurrent_not_predicted", {"modules": ", ".join(modules[:3])}))


def recurrent_modules(recording: Recording) -> list[str]:
    """Returns the recurrent layers, for which nothing is predicted."""
    return [site.path for site in recording.sites if site.kind in _RECURRENT]


def _about_rehearsals(verdicts: Iterable[Verdict]) -> Iterator[Finding]:
    said = set()
    for verdict in verdicts:
        for advice in verdict.rehearsal.advice if verdict.rehearsal is not None else ():
            if str(advice) not in said:
                said.add(str(advice))
                module = str(advice.data.get("module", ""))
                yield Finding("note", module, Reason("rehearsal_advice", {"advice": advice, "recipe": verdict.recipe}))


def _about_memory(verdict: Verdict, device: Device) -> Iterator[Finding]:
    predicted = verdict.predicted
    if predicted is not None and predicted.fits is False:
        data = {
            "peak": gibibytes(predicted.memory.peak_bytes),
            "device": device.name,
            "memory": f"{max(device.memory_gib):g} GiB",
            "activations": gibibytes(predicted.memory.activations_bytes),
            "states": gibibytes(predicted.memory.weights_bytes + predicted.memory.optimizer_bytes),
        }
        yield Finding("warning", "", Reason("predicted_out_of_memory", data))


def _about_speed(verdicts: Mapping[str, Verdict], recipe: str, device: Device) -> Iterator[Finding]:
    predicted = verdicts[recipe].predicted
    speed = predicted.speed if predicted is not None else None
    if speed is None or recipe == "fp32" or speed.ratio >= WORTHWHILE_SPEED:
        return
    data: dict[str, Any] = {"device": device.name, "recipe": recipe, "ratio": f"{speed.ratio:.2f}"}
    data.update(low=f"{speed.low:.2f}", high=f"{speed.high:.2f}")
    tf32 = verdicts["tf32"].predicted
    if recipe != "tf32" and verdicts["tf32"].status == "accepted" and tf32 is not None and tf32.speed is not None:
        yield Finding("warning", "", Reason("launch_bound_tf32", {**data, "tf32": f"{tf32.speed.ratio:.2f}"}))
    else:
        yield Finding("warning", "", Reason("launch_bound", data))


def _about_prediction(recording: Recording, plan: Plan, device: Device) -> Iterator[Finding]:
    if recording.framework == "torch" or plan.is_float32:
        return
    framework = {"keras": "Keras", "jax": "JAX"}.get(recording.framework, recording.framework)
    data = {"device": device.name, "framework": framework, "script": recording.script}
    yield Finding("note", "", Reason("not_predicted_here", data))


def _about_script(recording: Recording, plan: Plan) -> Iterator[Finding]:
    scaling, scaling_zh = ("scales it itself", "自行缩放") if plan.loss_scale else ("needs none", "不需要缩放")
    for kind, where, detail in recording.found:
        data = {"detail": detail, "plan": plan.recipe, "scaling": scaling, "scaling_zh": scaling_zh}
        yield Finding("note", where, Reason(kind, data))
    for site in recording.sites:
        if site.kind in ("binary_cross_entropy", "BCELoss") and not plan.is_float32:
            yield Finding("warning", site.path, Reason("binary_cross_entropy", {"site": site.path}))
            break


def _about_run(recording: Recording, wanted_steps: int) -> Iterator[Finding]:
    if "update by hand" in recording.optimizers:
        yield Finding("note", "", Reason("update_by_hand"))
    if recording.steps < wanted_steps:
        yield Finding("note", "", Reason("few_steps", {"steps": recording.steps, "wanted": wanted_steps}))


def _about_worth(recording: Recording, plan: Plan, here: bool) -> Iterator[Finding]:
    # Only a finding: the share was measured on the recording machine, and another one spends its time otherwise.
    share = recording.matrix_share
    if not here and not plan.is_float32 and 0 < share < _SMALL_MATRIX_SHARE:
        bound = f"{1 / (1 - share):.2f}"
        yield Finding("warning", "", Reason("small_matrix_share", {"share": percent(share), "bound": bound}))


def _about_shapes(recording: Recording, plan: Plan, device: Device) -> Iterator[Finding]:
    path = device.matrix.get(plan.compute_dtype)
    if path is None or path.alignment <= 1:
        return
    products = [s for s in recording.matrix_sites if s.k]
    unaligned = [s for s in products if any(side % path.alignment for side in (s.n, s.k))]
    if unaligned:
        worst = max(unaligned, key=lambda s: s.flops)
        data = {
            "count": len(unaligned),
            "total": len(products),
            "multiple": path.alignment,
            "example": f"{worst.path}: {worst.m}×{worst.k}×{worst.n}",
            "format": plan.compute_dtype,
        }
        yield Finding("warning", worst.path, Reason("unaligned", data))


def _kept_in_float32(recording: Recording, plan: Plan) -> Iterator[Finding]:
    if plan.is_float32 or recording.framework != "torch":
        return  # said of autocast's own lists
    kinds = Counter(s.kind for s in recording.sites if s.kind in _FLOAT32_KINDS)
    if kinds:
        modules = ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common())
        yield Finding("note", "", Reason("kept_in_float32", {"modules": modules}))

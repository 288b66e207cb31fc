# SPDX-License-Identifier: Apache-2.0
"""What speaks against a plan in a comparison with float32, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from floatwise.rehearse.comparison_rows import GradientRow
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.trial import Trial

__all__ = ["gradient_problems", "loss_problems", "range_problems", "remarks_on", "update_problems"]

#: Share of the steps that may be skipped once the scale suits the first batch: past it, most batches are lost.
LARGEST_SKIPPED_SHARE = 0.5


def range_problems(trial: Trial) -> list[Evidence]:
    """Returns what is not finite: the loss, or all gradients of the first batch."""
    losses = trial.trained.losses if trial.trained is not None else (trial.start.loss,)
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return [Evidence("loss_not_finite", {"loss": "NaN" if math.isnan(loss) else "inf", "step": step})]
    if trial.start.scale is None:
        settings = trial.plan.loss_scale
        lowest = settings.floor if settings is not None else 1.0
        return [Evidence("gradients_not_finite", {"scale": f"{lowest:g}"})]
    return []


def ended_early(trial: Trial, float32_steps: int) -> list[Evidence]:
    """Returns that the script ended itself after a bad value, as scripts do that look for one.

    One that ended for another reason, such as a budget of time, tells nothing.
    """
    if trial.trained is None or trial.first_nonfinite is None or len(trial.trained.losses) >= float32_steps:
        return []
    return [Evidence("ended_early", {"steps": len(trial.trained.losses), "float32_steps": float32_steps})]


def gradient_problems(rows: Sequence[GradientRow]) -> list[Evidence]:
    """Returns what is wrong with the gradients of the first batch."""
    problems = []
    wrong = [row for row in rows if row.is_wrong]
    if wrong:
        worst = min(wrong, key=lambda row: row.sqnr_db - row.required_db)  # type: ignore[operator]
        data = {
            "count": len(wrong),
            "total": len(rows),
            "parameter": worst.parameter,
            "sqnr_db": _decibels(worst.sqnr_db),
            "required_db": _decibels(worst.required_db),
        }
        problems.append(Evidence("gradients_wrong", data))
    vanished = [row for row in rows if row.has_vanished]
    if vanished:
        worst = max(vanished, key=lambda row: row.zero_share - row.float32_zero_share)
        data = {
            "count": len(vanished),
            "total": len(rows),
            "parameter": worst.parameter,
            "share": f"{worst.zero_share:.1%}",
            "float32_share": f"{worst.float32_zero_share:.1%}",
        }
        problems.append(Evidence("gradients_vanish", data))
    return problems


def loss_problems(
    finals: tuple[float, float], distance: float, tolerance: float, source: str, trial: Trial
) -> list[Evidence]:
    """Returns that the final losses, float32's and the plan's, are too far apart; nothing where they are not."""
    if trial.trained is None or not math.isfinite(finals[1]) or distance <= tolerance:
        return []
    data = {
        "planned": f"{finals[1]:.4g}",
        "float32": f"{finals[0]:.4g}",
        "tolerance": f"{tolerance:.2g}",
        "steps": len(trial.trained.losses),
    }
    return [Evidence(f"loss_outside_{source}", data)]


def update_problems(rows: Sequence[GradientRow], trial: Trial) -> list[Evidence]:
    """Returns what keeps updates from arriving."""
    problems = []
    stalled = [row for row in rows if row.stalls]
    if stalled:
        worst = max(stalled, key=lambda row: row.stalled_share)
        data = {
            "count": len(stalled),
            "total": len(rows),
            "parameter": worst.parameter,
            "share": f"{worst.stalled_share:.1%}",
            "float32_share": f"{worst.float32_stalled_share:.1%}",
        }
        problems.append(Evidence("updates_stall", data))
    trained = trial.trained
    if trained is not None and trained.skipped_steps > LARGEST_SKIPPED_SHARE * len(trained.losses):
        data = {"skipped": trained.skipped_steps, "steps": len(trained.losses), "scale": f"{trained.last_scale:g}"}
        problems.append(Evidence("steps_skipped", data))
    return problems


def remarks_on(trial: Trial, problems: Sequence[Evidence]) -> list[Evidence]:
    """Returns what else is worth knowing."""
    remarks = []
    if trial.start.is_finite and not trial.start.gradients:
        remarks.append(Evidence("no_gradients"))
    if trial.first_nonfinite is not None:
        remarks.append(Evidence.of_nonfinite(trial.first_nonfinite, harmless=not problems))
    if trial.settling_skips and trial.start.scale is not None and trial.plan.loss_scale is not None:
        data = {
            "initial": f"{trial.plan.loss_scale.initial_scale:g}",
            "scale": f"{trial.start.scale:g}",
            "skipped": trial.settling_skips,
        }
        remarks.append(Evidence("scale_settles", data))
    if trial.trained is not None and trial.trained.skipped_steps:
        data = {"skipped": trial.trained.skipped_steps, "steps": len(trial.trained.losses)}
        remarks.append(Evidence("some_steps_skipped", data))
    return remarks


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"

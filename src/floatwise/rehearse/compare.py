# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal says about a plan when it is held against float32.

Every limit comes from float32 itself:

* **Gradients of the first batch.** The same products added up in another order tell how well float32 knows a
  gradient. A format with coarser rounding knows it worse by the ratio of the two roundings, 78 dB for float16 and
  96 dB for bfloat16; that much noise, and `ROUNDING_MARGIN_DB` more, is rounding and nothing else. Noise under a
  tenth of what the next batch changes (`BATCH_MARGIN_DB`) is lost in stochastic gradient descent anyway. A
  gradient is wrong when it exceeds both.
* **The loss.** The last steps' mean must be as near to float32's as float32 runs are to one another. Where these
  differ by their rounding alone, the ratio of the roundings applies again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from floatwise.formats import get_format
from floatwise.plan import Plan
from floatwise.rehearse.baseline import Baseline
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.modules import ModuleRow, module_rows
from floatwise.rehearse.signal import cosine, sqnr_db
from floatwise.rehearse.trial import Trial
from floatwise.rehearse.watch import NonFinite

__all__ = ["Comparison", "GradientRow", "LossRow", "compare"]

#: Ten times the amplitude: another order of summation shows the rounding of products only, and of nothing between.
ROUNDING_MARGIN_DB = 20.0
#: Noise with a tenth of the power of the batches' own.
BATCH_MARGIN_DB = 10.0
#: Last steps whose mean is the final loss, and the least spread as a share of it: as in the planner's measurement.
FINAL_STEPS = 5
LEAST_SPREAD = 0.005
#: Share of a parameter's gradient that may vanish beyond what is zero in float32: Micikevicius et al. 2018
#: (arXiv:1710.03740, section 3.2) report a model that lost about 5 % of its values and needed them.
LARGEST_ZERO_SHARE = 0.05
#: Share of a parameter's updates that may be lost beyond those that float32 loses: past it, most never arrive.
LARGEST_STALLED_SHARE = 0.5
#: Share of the steps that may be skipped once the scale suits the first batch: past it, most batches are lost.
LARGEST_SKIPPED_SHARE = 0.5


@dataclass(frozen=True)
class GradientRow:
    """The gradient of one parameter at the weights that training begins with.

    Attributes:
      parameter: Its path.
      sqnr_db: Signal-to-noise ratio against float32; `-inf` when it is not finite, None when float32's is zero.
      cosine: Cosine of the angle to float32's; None when either is zero or not finite.
      required_db: The least ratio that rounding, or the next batch, explains; None where neither was measured.
      float32_db: The ratio of float32 against itself, its sums added up in another order.
      zero_share: Share of zeros.
      float32_zero_share: Share of zeros in float32.
      stalled_share: Share of the updates in all steps that changed nothing.
      float32_stalled_share: The same in float32.
    """

    parameter: str
    sqnr_db: float | None
    cosine: float | None
    required_db: float | None
    float32_db: float | None
    zero_share: float
    float32_zero_share: float
    stalled_share: float
    float32_stalled_share: float

    @property
    def is_wrong(self) -> bool:
        """Whether its noise exceeds what rounding and the next batch explain."""
        return self.sqnr_db is not None and self.required_db is not None and self.sqnr_db < self.required_db

    @property
    def has_vanished(self) -> bool:
        """Whether too much of it is zero that is not in float32."""
        return self.zero_share - self.float32_zero_share > LARGEST_ZERO_SHARE

    @property
    def stalls(self) -> bool:
        """Whether most of its updates are lost that float32 makes."""
        return self.stalled_share - self.float32_stalled_share > LARGEST_STALLED_SHARE


@dataclass(frozen=True)
class LossRow:
    """One step: both losses, how far apart they are, how far apart the float32 runs are, and the gradients.

    Attributes:
      step: Its number.
      float32: Loss of the float32 run.
      rehearsed: Loss under the plan.
      distance: Magnitude of the difference.
      spread: Largest less smallest loss of the float32 runs at this step.
      gradient_db: Signal-to-noise ratio of all gradients together against float32's of this step, for the first
        steps. Weights differ from the second step on.
    """

    step: int
    float32: float
    rehearsed: float
    distance: float
    spread: float
    gradient_db: float | None


@dataclass(frozen=True)
class Comparison:
    """A rehearsal held against float32.

    Attributes:
      recipe: Recipe of the plan.
      problems: What speaks against the plan, the worst first; empty when nothing does.
      remarks: What else was seen.
      losses: Step by step.
      final_losses: Mean of the last steps: float32, rehearsed.
      tolerance: How far apart those two may be.
      spread_source: What the float32 runs differ by: `seeds` or `permuted_reductions`.
      gradients: Parameter by parameter, in the model's order.
      modules: Where in the forward pass precision is lost, the worst first.
      first_nonfinite: The first operator that made infinities or NaN of finite numbers.
      loss_scale: The scale that suits the first batch; None when none does.
      settling_skips: Steps skipped at first until the plan's scale has come down to it.
      skipped_steps: Steps skipped after that.
    """

    recipe: str
    problems: tuple[Evidence, ...]
    remarks: tuple[Evidence, ...]
    losses: tuple[LossRow, ...]
    final_losses: tuple[float, float]
    tolerance: float
    spread_source: str
    gradients: tuple[GradientRow, ...]
    modules: tuple[ModuleRow, ...]
    first_nonfinite: NonFinite | None
    loss_scale: float | None
    settling_skips: int
    skipped_steps: int

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against the plan."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON holds it, with infinities and NaN as text."""
        values = {**asdict(self), "passes": self.passes}
        values["problems"] = [e.to_json() for e in self.problems]
        values["remarks"] = [e.to_json() for e in self.remarks]
        return _plain(values)  # type: ignore[no-any-return]


def compare(baseline: Baseline, trial: Trial) -> Comparison:
    """Holds a rehearsal against the float32 runs of the same training, seed and batches."""
    rows = _gradient_rows(baseline, trial)
    tolerance = _tolerance(baseline, trial.plan)
    losses = _loss_rows(baseline, trial)
    rehearsed = trial.trained.losses if trial.trained is not None else (trial.start.loss,)
    finals = final_loss(baseline.losses), final_loss(rehearsed)
    problems = [
        *_range_problems(trial),
        *_gradient_problems(rows),
        *_loss_problems(finals, tolerance, baseline, trial),
        *_update_problems(rows, trial),
    ]
    return Comparison(
        recipe=trial.plan.recipe,
        problems=tuple(problems),
        remarks=tuple(_remarks(trial, problems)),
        losses=losses,
        final_losses=finals,
        tolerance=tolerance,
        spread_source=baseline.spread_source,
        gradients=rows,
        modules=module_rows(baseline.trial.start, trial.start, _lowest_format(trial.plan)),
        first_nonfinite=trial.first_nonfinite,
        loss_scale=trial.start.scale,
        settling_skips=trial.settling_skips,
        skipped_steps=trial.trained.skipped_steps if trial.trained is not None else 0,
    )


def final_loss(losses: Sequence[float]) -> float:
    """Returns the mean of the last steps' losses; NaN when there are none."""
    last = losses[-FINAL_STEPS:]
    return sum(last) / len(last) if last else math.nan


def _lowest_format(plan: Plan) -> str:
    """Returns the coarsest format that the plan keeps values in."""
    return plan.compute_dtype if plan.compute_dtype in ("float16", "bfloat16") else "float32"


def _rounding_ratio(plan: Plan) -> float:
    return get_format(_lowest_format(plan)).epsilon / get_format("float32").epsilon


def _gradient_rows(baseline: Baseline, trial: Trial) -> tuple[GradientRow, ...]:
    coarser = 20 * math.log10(_rounding_ratio(trial.plan)) + ROUNDING_MARGIN_DB
    true, seen = baseline.trial.start, trial.start
    stalls = [t.trained.stalled_share if t.trained is not None else {} for t in (trial, baseline.trial)]
    rows = []
    for name, gradient in true.gradients.items():
        known = baseline.gradient_rounding_db.get(name)
        limits = [known - coarser] if known is not None else []
        if name in baseline.gradient_batch_db:
            limits.append(baseline.gradient_batch_db[name] + BATCH_MARGIN_DB)
        there = seen.gradients.get(name)
        rows.append(
            GradientRow(
                parameter=name,
                sqnr_db=sqnr_db(gradient, there) if there is not None else -math.inf,
                cosine=cosine(gradient, there) if there is not None else None,
                required_db=min(limits, default=None),
                float32_db=known,
                zero_share=seen.zero_share.get(name, 0.0),
                float32_zero_share=true.zero_share[name],
                stalled_share=stalls[0].get(name, 0.0),
                float32_stalled_share=stalls[1].get(name, 0.0),
            )
        )
    return tuple(rows)


def _loss_rows(baseline: Baseline, trial: Trial) -> tuple[LossRow, ...]:
    if trial.trained is None or baseline.trial.trained is None:
        return ()
    rows = []
    gradients = zip(baseline.trial.trained.gradients, trial.trained.gradients, strict=False)
    ratios = [_together_db(true, seen) for true, seen in gradients]
    for step, (mine, theirs) in enumerate(zip(baseline.losses, trial.trained.losses, strict=False)):
        runs = [mine, *(losses[step] for losses in baseline.other_losses if step < len(losses))]
        ratio = ratios[step] if step < len(ratios) else None
        rows.append(LossRow(step, mine, theirs, abs(theirs - mine), max(runs) - min(runs), ratio))
    return tuple(rows)


def _together_db(true: Any, seen: Any) -> float | None:
    import torch

    names = [name for name in true if name in seen]
    if not names:
        return None
    return sqnr_db(torch.cat([true[n] for n in names]), torch.cat([seen[n] for n in names]))


def _tolerance(baseline: Baseline, plan: Plan) -> float:
    finals = [final_loss(baseline.losses), *(final_loss(losses) for losses in baseline.other_losses)]
    own = max(finals) - min(finals) if all(map(math.isfinite, finals)) else 0.0
    if baseline.spread_source == "permuted_reductions":
        own *= _rounding_ratio(plan)
    return max(own, LEAST_SPREAD * abs(finals[0]))


def _range_problems(trial: Trial) -> list[Evidence]:
    losses = trial.trained.losses if trial.trained is not None else (trial.start.loss,)
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return [Evidence("loss_not_finite", {"loss": "NaN" if math.isnan(loss) else "inf", "step": step})]
    if trial.start.scale is None:
        settings = trial.plan.loss_scale
        lowest = settings.floor if settings is not None else 1.0
        return [Evidence("gradients_not_finite", {"scale": f"{lowest:g}"})]
    return []


def _gradient_problems(rows: Sequence[GradientRow]) -> list[Evidence]:
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


def _loss_problems(finals: tuple[float, float], tolerance: float, baseline: Baseline, trial: Trial) -> list[Evidence]:
    if trial.trained is None or not math.isfinite(finals[1]) or abs(finals[1] - finals[0]) <= tolerance:
        return []
    data = {
        "planned": f"{finals[1]:.4g}",
        "float32": f"{finals[0]:.4g}",
        "tolerance": f"{tolerance:.2g}",
        "steps": len(trial.trained.losses),
    }
    return [Evidence(f"loss_outside_{baseline.spread_source}", data)]


def _update_problems(rows: Sequence[GradientRow], trial: Trial) -> list[Evidence]:
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


def _remarks(trial: Trial, problems: Sequence[Evidence]) -> list[Evidence]:
    remarks = []
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


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal says about a plan when it is held against float32.

Every limit comes from float32 itself:

* **Gradients of the first batch.** The same products added up in another order tell how well float32 knows a
  gradient. A format with coarser rounding knows it worse by the ratio of the two roundings, 78 dB for float16 and
  96 dB for bfloat16; that much noise, and `ROUNDING_MARGIN_DB` more, is rounding and nothing else. It is harmless
  up to a tenth of the gradient's own power (`HARMLESS_DB`). Up to a tenth of what the next batch changes it is lost
  in stochastic gradient descent anyway. A gradient with more noise than that is wrong. One that float32 does not
  know either, as that of a bias before a batch normalisation, is rounding error alone and may be anything.
* **The loss.** The last steps' mean must be as near to float32's as float32 runs are to one another. Where these
  differ by their rounding alone, the ratio of the roundings applies again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from floatwise.formats import get_format
from floatwise.plan import Plan
from floatwise.rehearse.baseline import Baseline
from floatwise.rehearse.comparison_rows import GradientRow, LossRow
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.modules import ModuleRow, module_rows
from floatwise.rehearse.problems import (
    gradient_problems,
    loss_problems,
    range_problems,
    remarks_on,
    update_problems,
)
from floatwise.rehearse.sqnr import cosine, sqnr_db
from floatwise.rehearse.trial import Trial
from floatwise.rehearse.watch import NonFinite

__all__ = ["Comparison", "GradientRow", "LossRow", "compare", "final_loss"]

#: Ten times the amplitude: another order of summation shows the rounding of products only, and of nothing between.
ROUNDING_MARGIN_DB = 20.0
#: Noise with a tenth of the power: of the gradient itself, or of what another batch changes.
HARMLESS_DB = 10.0
#: Root mean square of a gradient, over that of all gradients, under which 16 bits need not know what float32 knows:
#: nearly cancelled gradients, whose noise does not change the direction of a step.
LEAST_SIZE = 1e-3
#: Last steps whose mean is the final loss, and the least spread as a share of it: as in the planner's measurement.
FINAL_STEPS = 5
LEAST_SPREAD = 0.005


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
        *range_problems(trial),
        *gradient_problems(rows),
        *loss_problems(finals, tolerance, baseline.spread_source, trial),
        *update_problems(rows, trial),
    ]
    return Comparison(
        recipe=trial.plan.recipe,
        problems=tuple(problems),
        remarks=tuple(remarks_on(trial, problems)),
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
    true, seen = baseline.trial.start, trial.start
    stalls = [t.trained.stalled_share if t.trained is not None else {} for t in (trial, baseline.trial)]
    typical = _root_mean_square(true.gradients.values())
    rows = []
    for name, gradient in true.gradients.items():
        known = baseline.gradient_rounding_db.get(name)
        size = _root_mean_square([gradient]) / typical if typical else 0.0
        required = _required_db(known, baseline.gradient_batch_db.get(name), size, trial.plan)
        there = seen.gradients.get(name)
        rows.append(
            GradientRow(
                parameter=name,
                sqnr_db=sqnr_db(gradient, there) if there is not None else -math.inf,
                cosine=cosine(gradient, there) if there is not None else None,
                required_db=required,
                float32_db=known,
                zero_share=seen.zero_share.get(name, 0.0),
                float32_zero_share=true.zero_share[name],
                stalled_share=stalls[0].get(name, 0.0),
                float32_stalled_share=stalls[1].get(name, 0.0),
            )
        )
    return tuple(rows)


def _required_db(known: float | None, batch: float | None, size: float, plan: Plan) -> float | None:
    if known is None or known < HARMLESS_DB:
        return None
    explained = known - 20 * math.log10(_rounding_ratio(plan)) - ROUNDING_MARGIN_DB
    if explained < HARMLESS_DB and size < LEAST_SIZE:
        return None
    required = max(explained, HARMLESS_DB)
    return required if batch is None else min(required, batch + HARMLESS_DB)


def _root_mean_square(tensors: Iterable[torch.Tensor]) -> float:
    values = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return float(values.double().square().mean().sqrt())


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


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

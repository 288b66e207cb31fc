# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal says about a plan when it is held against float32.

Every limit comes from float32 itself:

* **Gradients of the first batch.** The same products added up in another order tell how well float32 knows a
  gradient. A format with coarser rounding knows it worse by the ratio of the two roundings, 78 dB for float16 and
  96 dB for bfloat16; that much noise, and `ROUNDING_MARGIN_DB` more, is rounding and nothing else. It is harmless
  up to a tenth of the gradient's own power (`HARMLESS_DB`). Up to a tenth of what the next batch changes it is lost
  in stochastic gradient descent anyway. A gradient with more noise than that is wrong. One that float32 does not
  know either, as that of a bias before a batch normalisation, is rounding error alone and may be anything.
* **float8** knows a gradient worse by 120 dB (e4m3) or 126 dB (e5m2): whatever noise there is, rounding explains it,
  and what is harmless decides alone. That is a quarter here (`HARMLESS_FLOAT8_DB`): every product adds noise of
  a hundredth and more.
* **The loss.** The last steps' mean must be as near to float32's as float32 runs are to one another. Where these
  differ by their rounding alone, the ratio of the roundings applies again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from floatwise.formats import get_format
from floatwise.rehearse.baseline import Baseline
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.comparison_rows import GradientRow, LossRow
from floatwise.rehearse.float8_remarks import float8_remarks
from floatwise.rehearse.float8_scaling import get_float8_scaling
from floatwise.rehearse.float8_script import without_float8
from floatwise.rehearse.loss_spread import LEAST_SPREAD, final_loss, loss_tolerance
from floatwise.rehearse.modules import module_rows
from floatwise.rehearse.problems import (
    ended_early,
    gradient_problems,
    loss_problems,
    range_problems,
    remarks_on,
    update_problems,
)
from floatwise.rehearse.sqnr import cosine, sqnr_db
from floatwise.rehearse.trial import Trial

__all__ = ["compare"]

#: Ten times the amplitude: another order of summation shows the rounding of products only, and of nothing between.
ROUNDING_MARGIN_DB = 20.0
#: Noise with a tenth of the power: of the gradient itself, or of what another batch changes.
HARMLESS_DB = 10.0
#: The same where products are float8: noise with a quarter of the power, as of a batch that is a fifth smaller. Chosen
#: by experience: perceptrons with 8 and 16 layers, which train as well so as in float32, have 6 to 8 dB in their
#: first layers; those that lose their inputs have 0 to 3.
HARMLESS_FLOAT8_DB = 6.0
#: Root mean square of a gradient, over that of all gradients, under which 16 bits need not know what float32 knows:
#: nearly cancelled gradients, whose noise does not change the direction of a step.
LEAST_SIZE = 1e-3


def compare(baseline: Baseline, trial: Trial) -> Comparison:
    """Holds a rehearsal against the float32 runs of the same training, seed and batches."""
    rows = _gradient_rows(baseline, trial)
    tolerance = _tolerance(baseline, trial)
    losses = _loss_rows(baseline, trial)
    rehearsed = trial.trained.losses if trial.trained is not None else (trial.start.loss,)
    finals = final_loss(baseline.losses), final_loss(rehearsed)
    problems = [
        *range_problems(trial),
        *gradient_problems(rows),
        *loss_problems(finals, _distance(baseline, trial, finals[1]), tolerance, baseline.spread_source, trial),
        *update_problems(rows, trial),
    ]
    if not problems:
        problems = ended_early(trial, len(baseline.losses))
    return Comparison(
        recipe=trial.plan.recipe,
        problems=tuple(problems),
        remarks=(*remarks_on(trial, problems), *float8_remarks(trial.plan, trial.start.float8)),
        losses=losses,
        final_losses=finals,
        tolerance=tolerance,
        spread_source=baseline.spread_source,
        gradients=rows,
        modules=module_rows(baseline.trial.start, trial.start, _lowest_formats(trial)[0]),
        first_nonfinite=trial.first_nonfinite,
        loss_scale=trial.start.scale,
        settling_skips=trial.settling_skips,
        skipped_steps=trial.trained.skipped_steps if trial.trained is not None else 0,
    )


def _lowest_formats(trial: Trial) -> tuple[str, str]:
    """Returns the coarsest formats that the plan keeps values and their gradients in, or multiplies them in."""
    plan, use = trial.plan, trial.start.float8
    if plan.scaling is not None and (use is None or use.converted):
        forward = get_format(plan.compute_dtype)
        return forward.name, get_float8_scaling(plan.scaling).gradient_format(forward).name
    dtype = without_float8(plan).compute_dtype
    lowest = dtype if dtype in ("float16", "bfloat16") else "float32"
    return lowest, lowest


def _rounding_ratio(fmt: str) -> float:
    return get_format(fmt).epsilon / get_format("float32").epsilon


def _gradient_rows(baseline: Baseline, trial: Trial) -> tuple[GradientRow, ...]:
    true, seen = baseline.trial.start, trial.start
    stalls = [t.trained.stalled_share if t.trained is not None else {} for t in (trial, baseline.trial)]
    typical = _root_mean_square(true.gradients.values())
    lowest = _lowest_formats(trial)[1]
    rows = []
    for name, gradient in true.gradients.items():
        known = baseline.gradient_rounding_db.get(name)
        size = _root_mean_square([gradient]) / typical if typical else 0.0
        required = _required_db(known, baseline.gradient_batch_db.get(name), size, lowest)
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
                narrow_range=trial.plan.compute_dtype == "float16",
            )
        )
    return tuple(rows)


def _required_db(known: float | None, batch: float | None, size: float, lowest: str) -> float | None:
    harmless = HARMLESS_FLOAT8_DB if get_format(lowest).bits == 8 else HARMLESS_DB
    if known is None or known < harmless:
        return None
    explained = known - 20 * math.log10(_rounding_ratio(lowest)) - ROUNDING_MARGIN_DB
    if explained < harmless and size < LEAST_SIZE:
        return None
    required = max(explained, harmless)
    return required if batch is None else min(required, batch + harmless)


def _root_mean_square(tensors: Iterable[torch.Tensor]) -> float:
    flat = [tensor.reshape(-1) for tensor in tensors]
    if not flat:
        return 0.0
    values = torch.cat(flat)
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


def _tolerance(baseline: Baseline, trial: Trial) -> float:
    runs = [baseline.losses, *baseline.other_losses]
    if baseline.spread_source == "seeds":
        return loss_tolerance(runs)
    finals = [final_loss(losses) for losses in runs]
    own = max(finals) - min(finals) if all(map(math.isfinite, finals)) else 0.0
    # A training that amplifies its own rounding explains any loss by it, but none may lose what training gained.
    gained = max(baseline.losses) - min(baseline.losses)
    own = min(own * _rounding_ratio(_lowest_formats(trial)[0]), gained)
    return max(own, LEAST_SPREAD * abs(finals[0]))


def _distance(baseline: Baseline, trial: Trial, planned: float) -> float:
    """Returns how far a final loss is from float32's, now or before as many steps as were skipped."""
    skipped = trial.trained.skipped_steps if trial.trained is not None else 0
    before = baseline.losses[: len(baseline.losses) - skipped] or baseline.losses[:1]
    low, high = sorted((final_loss(baseline.losses), final_loss(before)))
    return max(low - planned, planned - high, 0.0)

# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's configuration as the nearest plan."""

from __future__ import annotations

from floatwise.exporters.deepspeed.facts import facts_of
from floatwise.exporters.deepspeed.faults import faults_of, table_faults
from floatwise.exporters.deepspeed.findings import findings_of
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import Settings, SettingsProblems
from floatwise.exporters.system import Reading
from floatwise.exporters.version import Version
from floatwise.plan.model import Reductions

__all__ = ["read", "recognises"]

# How surely a top-level key is DeepSpeed's: some are also keys of Accelerate's YAML or of Trainer's arguments.
_SIGNS = {
    "zero_optimization": 0.9,
    "train_micro_batch_size_per_gpu": 0.9,
    "zero_allow_untested_optimizer": 0.9,
    "torch_autocast": 0.8,
    "communication_data_type": 0.7,
    "data_types": 0.7,
    "bf16": 0.5,
    "bfloat16": 0.5,
    "fp16": 0.5,
    "train_batch_size": 0.5,
}


def read(settings: Settings, version: Version) -> Reading:
    """Returns the nearest plan.

    Raises:
      SettingsProblems: Values contradict each other.
    """
    problems = list(table_faults(settings, version))
    if problems:
        raise SettingsProblems(problems)
    facts = facts_of(settings, version)
    problems = list(faults_of(facts))
    if problems:
        raise SettingsProblems(problems)
    mode = facts.mode
    return nearest_plan(
        compute_dtype=mode.dtype,
        param_dtype=mode.weights,
        # Outputs are handed on as the last operator leaves them: in 16 bits behind a Linear layer.
        output_dtype=mode.dtype,
        master="float32" if mode.kind == "stored" and not facts.pure else "none",
        loss_scale=facts.loss_scale(),
        reductions=Reductions(
            reduce_dtype=facts.reduces_in, accumulate_dtype=facts.sums_in, buffer_dtype=facts.buffers_in
        ),
        findings=findings_of(facts),
        loc=facts.loc,
    )


def recognises(settings: Settings) -> float:
    """Returns how surely settings are DeepSpeed's."""
    if settings.form != "json":
        return 0.0
    tables = {key for key in ("fp16", "bf16", "bfloat16") if not isinstance(settings.get(key), dict)}
    return max((sure for key, sure in _SIGNS.items() if settings.has(key) and key not in tables), default=0.0)

# SPDX-License-Identifier: Apache-2.0
"""A plan as arguments of TrainingArguments: a table of them, or a call in Python source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.exporters.accelerate_modes import DEFAULT_SCALE
from floatwise.exporters.grad_scaler import grad_scaler_arguments
from floatwise.exporters.python_text import call_text
from floatwise.exporters.system import Request
from floatwise.exporters.transformers.knobs import SCALER
from floatwise.plan.model import LossScale, Plan

__all__ = ["write"]

_TRAINER = '''

class PlannedTrainer(Trainer):
    """A Trainer with the loss scale of the plan: use it in place of Trainer."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        scaler = self.accelerator.scaler
        if scaler is not None:  # there is none on a CPU
            scaler.load_state_dict(
                {
                    "scale": LOSS_SCALE.init_scale,
                    "growth_factor": LOSS_SCALE.growth_factor,
                    "backoff_factor": LOSS_SCALE.backoff_factor,
                    "growth_interval": LOSS_SCALE.growth_interval,
                    "_growth_tracker": 0,
                }
            )
'''


def write(plan: Plan, request: Request) -> Mapping[str, Any] | str:
    """Returns the arguments as values, or the source of a call where the form is `python`."""
    values = {
        "fp16": plan.compute_dtype == "float16",
        "bf16": plan.compute_dtype == "bfloat16",
        "tf32": plan.float32_matmul == "tf32",
    }
    return _source(values, plan.loss_scale) if request.form == "python" else values


def _source(values: Mapping[str, Any], scale: LossScale | None) -> str:
    call = f"TRAINING_ARGUMENTS = {call_text('TrainingArguments', values)}\n"
    if scale is None or grad_scaler_arguments(scale) == grad_scaler_arguments(DEFAULT_SCALE):
        return f"from transformers import TrainingArguments\n\n{call}"
    scaler = f"LOSS_SCALE = {call_text(SCALER, grad_scaler_arguments(scale))}\n"
    imports = f"from accelerate.utils import {SCALER}\nfrom transformers import Trainer, TrainingArguments\n"
    return f"{imports}\n{call}{scaler}{_TRAINER}"

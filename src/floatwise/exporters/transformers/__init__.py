# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: the arguments of `TrainingArguments` that decide precision, in versions 4 and 5.

Trainer hands its precision to Accelerate: autocast around the model's forward, float32 weights, and with float16 a
GradScaler whose numbers no argument can change.
"""

from __future__ import annotations

from floatwise.exporters.system import System
from floatwise.exporters.transformers.knobs import CALLS, KNOBS, OTHERS
from floatwise.exporters.transformers.losses import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.transformers.read import read, recognises
from floatwise.exporters.transformers.write import write
from floatwise.language import Text

__all__ = ["TRANSFORMERS"]

TRANSFORMERS = System(
    name="transformers",
    title="Hugging Face Trainer",
    summary=Text(
        "Arguments of TrainingArguments, as a file for HfArgumentParser or as a call",
        "TrainingArguments 的参数：供 HfArgumentParser 读取的文件，或一次调用",
    ),
    distribution="transformers",
    read_version="5.24.0",
    oldest="4.46",
    forms={"json": "training_args.json", "yaml": "training_args.yaml", "python": "training_args.py"},
    knobs=KNOBS,
    closed=CALLS,
    others=OTHERS,
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

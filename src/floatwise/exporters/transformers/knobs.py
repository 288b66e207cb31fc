# SPDX-License-Identifier: Apache-2.0
"""The arguments of TrainingArguments that have to do with precision, and the names of all the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from floatwise.exporters.grad_scaler import grad_scaler_knobs
from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.transformers.fields import CURRENT_FIELDS, DROPPED_FIELDS, SEQ2SEQ_FIELDS
from floatwise.language import Text

__all__ = ["CALLS", "KNOBS", "OTHERS", "SCALER", "misspelled"]

CALLS = ("TrainingArguments", "Seq2SeqTrainingArguments")
"""The classes whose arguments are read in Python source."""

SCALER = "GradScalerKwargs"
"""Accelerate's class of loss-scale arguments, of which the written Trainer subclass makes its loss scale."""

_SOURCE = "transformers/training_args.py, 5.24.0"
_SOURCE_4 = "transformers/training_args.py, 4.57.3"
_TEXT = 'a text is true in Python, even "false": write true or false without quotes'

_ROWS = (
    Knob(
        key="fp16",
        kind="bool",
        default=False,
        why=_TEXT,
        meaning=Text(
            "Autocast to float16 with a loss scale (float16 mixed precision).",
            "用 autocast 转换为 float16 并做损失缩放（float16 混合精度）。",
        ),
        source=_SOURCE,
    ),
    Knob(
        key="bf16",
        kind="bool",
        default=False,
        why=_TEXT,
        meaning=Text(
            "Autocast to bfloat16 (bfloat16 mixed precision).", "用 autocast 转换为 bfloat16（bfloat16 混合精度）。"
        ),
        source=_SOURCE,
    ),
    Knob(
        key="fp16_full_eval",
        kind="bool",
        default=False,
        why=_TEXT,
        meaning=Text(
            "evaluate() and predict() outside train() cast the model itself to float16.",
            "在 train() 之外调用 evaluate() 和 predict() 时，模型本身被转换为 float16。",
        ),
        source=_SOURCE,
    ),
    Knob(
        key="bf16_full_eval",
        kind="bool",
        default=False,
        why=_TEXT,
        meaning=Text(
            "evaluate() and predict() outside train() cast the model itself to bfloat16.",
            "在 train() 之外调用 evaluate() 和 predict() 时，模型本身被转换为 bfloat16。",
        ),
        source=_SOURCE,
    ),
    Knob(
        key="tf32",
        kind="bool",
        none=True,
        why=_TEXT,
        meaning=Text(
            "Whether float32 products and convolutions use TF32; null: as PyTorch has it, or on with torch_compile.",
            "float32 乘法和卷积是否使用 TF32；null 表示沿用 PyTorch 的设置，启用 torch_compile 时则打开。",
        ),
        source=_SOURCE,
    ),
    Knob(
        key="use_cpu",
        kind="bool",
        default=False,
        meaning=Text("Train on the CPU.", "在 CPU 上训练。"),
        source=_SOURCE,
    ),
    Knob(
        key="half_precision_backend",
        kind="str",
        default="auto",
        choices=("auto", "apex", "cpu_amp"),
        until="5.0.0",
        instead=DROPPED_FIELDS["half_precision_backend"][1],
        meaning=Text("Who does mixed precision.", "由谁执行混合精度。"),
        source=_SOURCE_4,
    ),
    Knob(
        key="fp16_backend",
        kind="str",
        default="auto",
        choices=("auto", "apex", "cpu_amp"),
        until="5.0.0",
        instead=DROPPED_FIELDS["fp16_backend"][1],
        meaning=Text("An older name of half_precision_backend.", "half_precision_backend 的旧名。"),
        source=_SOURCE_4,
    ),
    Knob(
        key="fp16_opt_level",
        kind="str",
        default="O1",
        choices=("O0", "O1", "O2", "O3"),
        until="5.0.0",
        instead=DROPPED_FIELDS["fp16_opt_level"][1],
        meaning=Text("The level of NVIDIA apex's amp.", "NVIDIA apex amp 的级别。"),
        source=_SOURCE_4,
    ),
    Knob(
        key="no_cuda",
        kind="bool",
        default=False,
        until="5.0.0",
        instead=DROPPED_FIELDS["no_cuda"][1],
        meaning=Text("An older name of use_cpu.", "use_cpu 的旧名。"),
        source=_SOURCE_4,
    ),
)


def _dropped(name: str) -> Knob:
    until, instead = DROPPED_FIELDS[name]
    return Knob(
        key=name,
        kind="any",
        until=until,
        instead=instead,
        meaning=Text("Has nothing to do with precision.", "与精度无关。"),
        source="transformers/training_args.py, 4.46.3 to 5.24.0",
    )


_PRECISION = {knob.key for knob in _ROWS}
_ALL = (*_ROWS, *(_dropped(name) for name in DROPPED_FIELDS if name not in _PRECISION))
_PREFIXES = ("", *(f"{call}." for call in CALLS))

KNOBS: Mapping[str, Knob] = knob_table(
    *(replace(knob, key=prefix + knob.key) for prefix in _PREFIXES for knob in _ALL), *grad_scaler_knobs(SCALER)
)
"""By argument, for a table of arguments and for each call."""

_NAMES = (CURRENT_FIELDS | SEQ2SEQ_FIELDS) - _PRECISION

OTHERS = frozenset(prefix + name for prefix in _PREFIXES for name in _NAMES)
"""Arguments that have nothing to do with precision."""

# Above this likeness a key is an argument misspelled. Chosen: of the arguments of example scripts
# (model_name_or_path, max_train_samples, target_modules, …) none reaches it, and one wrong letter in `fp16` does.
_LIKENESS, _LIKENESS_OF_PRECISION = 0.9, 0.75


def misspelled(keys: Iterable[str]) -> Mapping[str, str]:
    """Returns the keys that are an argument's name with a mistake, and that name."""
    return {key: near for key in keys if (near := _meant(key.lower()))}


def _meant(key: str) -> str | None:
    near = difflib.get_close_matches(key, sorted(_PRECISION), n=1, cutoff=_LIKENESS_OF_PRECISION)
    near = near or difflib.get_close_matches(key, sorted(_NAMES), n=1, cutoff=_LIKENESS)
    return near[0] if near else None

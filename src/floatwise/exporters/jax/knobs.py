# SPDX-License-Identifier: Apache-2.0
"""The arguments of Flax's DynamicScale and jmp's DynamicLossScale."""

from __future__ import annotations

from typing import Any

from floatwise.exporters.knob import Kind, Knob, knob_table
from floatwise.language import Text

__all__ = ["KNOBS", "MATMUL_PRECISIONS"]

_FLAX = "flax/training/dynamic_scale.py, 0.12.8"
_JMP = "jmp/_src/loss_scale.py, 0.0.4"

MATMUL_PRECISIONS = {
    "float32": "ieee",
    "highest": "ieee",
    "F32_F32_F32": "ieee",
    "tensorfloat32": "tf32",
    "high": "tf32",
    "default": "tf32",
    "fastest": "tf32",
    "TF32_TF32_F32": "tf32",
}
"""What values of jax_default_matmul_precision do to float32 on a GPU.

Source: the docstring of `jax.lax.Precision` (jax/_src/lax/lax.py, 0.10.2): the default and HIGH use TF32 if available.
"""


def _row(key: str, kind: Kind, en: str, zh: str, source: str = _FLAX, **more: Any) -> Knob:
    return Knob(key=key, kind=kind, meaning=Text(en, zh), source=source, **more)


KNOBS = knob_table(
    _row(
        "DynamicScale.scale",
        "float",
        "The loss scale of the first step.",
        "第一步的损失缩放系数。",
        default=65536.0,
        above=0,
        maximum=2.0**127,
    ),
    _row(
        "DynamicScale.growth_factor",
        "float",
        "What the scale is multiplied by when it grows.",
        "缩放系数增大的倍数。",
        default=2.0,
        above=1,
    ),
    _row(
        "DynamicScale.backoff_factor",
        "float",
        "What the scale is multiplied by after an overflow.",
        "溢出后的倍数。",
        default=0.5,
        above=0,
        below=1,
    ),
    _row(
        "DynamicScale.growth_interval",
        "int",
        "Good steps in a row before the scale grows.",
        "缩放系数增大之前需要连续正常的步数。",
        default=2000,
        minimum=1,
        below=2**31,
    ),
    _row("DynamicScale.fin_steps", "int", "Good steps in a row so far.", "目前连续正常的步数。", default=0, minimum=0),
    _row(
        "DynamicScale.minimum_scale",
        "float",
        "The scale below which backing off stops; 2^-126 unless given, which is no floor in practice.",
        "缩放系数的下限；默认为 2^-126，实际上等于没有下限。",
        none=True,
        above=0,
    ),
    _row(
        "DynamicLossScale.period", "int", "As growth_interval.", "同 growth_interval。", _JMP, default=2000, minimum=1
    ),
    _row("DynamicLossScale.factor", "float", "The scale grows and shrinks by it.", "增大和减小的倍数。", _JMP, above=1),
    _row(
        "DynamicLossScale.min_loss_scale",
        "any",
        "The floor; a scale that has gone through jax.jit has 1 again.",
        "下限；经过 jax.jit 后恢复为 1。",
        _JMP,
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""The constants of the module that is written for plain PyTorch: what each may be."""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.settings import Dotted, Settings
from floatwise.language import Text
from floatwise.plan.dtypes import STORE_FORMATS

__all__ = ["CONSTANTS", "is_our_module"]

_SOURCE = "floatwise/exporters/torch_amp/write.py"
_DTYPES = tuple(Dotted(f"torch.{name}") for name in STORE_FORMATS)
_MINE = ("PARAM_DTYPE", "COMPUTE_DTYPE", "OUTPUT_DTYPE", "FLOAT32_MATMUL", "LOSS_SCALE")


def _number(name: str, meaning: Text, **limits: float) -> Knob:
    kind = "int" if name in ("growth_interval", "hysteresis") else "float"
    return Knob(key=f"LOSS_SCALE.{name}", kind=kind, meaning=meaning, source=_SOURCE, **limits)  # type: ignore[arg-type]


CONSTANTS: Mapping[str, Knob] = knob_table(
    Knob(
        key="PARAM_DTYPE",
        kind="name",
        choices=_DTYPES[:1],
        meaning=Text(
            "The format of the weights; this module keeps them in float32.", "权重的格式；该模块保持 float32。"
        ),
        source=_SOURCE,
    ),
    Knob(
        key="COMPUTE_DTYPE",
        kind="name",
        choices=_DTYPES,
        meaning=Text("The format products compute in.", "矩阵乘法的计算格式。"),
        source=_SOURCE,
    ),
    Knob(
        key="OUTPUT_DTYPE",
        kind="name",
        choices=_DTYPES,
        meaning=Text("The format of the model's outputs.", "模型输出的格式。"),
        source=_SOURCE,
    ),
    Knob(
        key="FLOAT32_MATMUL",
        kind="str",
        choices=("ieee", "tf32"),
        meaning=Text("How float32 products are computed.", "float32 乘法的计算方式。"),
        source=_SOURCE,
    ),
    Knob(
        key="MODULES",
        kind="list",
        meaning=Text("Modules with formats of their own.", "格式独立的模块。"),
        source=_SOURCE,
    ),
    Knob(
        key="LOSS_SCALE.mode",
        kind="str",
        choices=("dynamic", "static"),
        meaning=Text("Whether the scale follows the gradients.", "缩放系数是否随梯度调整。"),
        source=_SOURCE,
    ),
    _number("initial_scale", Text("The scale of the first step.", "第一步的缩放系数。"), above=0, maximum=2.0**127),
    _number("growth_factor", Text("What the scale grows by.", "增大的倍数。"), above=1),
    _number("backoff_factor", Text("What an overflow multiplies it by.", "溢出后的倍数。"), above=0, below=1),
    _number("growth_interval", Text("Good steps before it grows.", "增大前连续正常的步数。"), minimum=1, below=2**31),
    _number("hysteresis", Text("Overflows in a row before it backs off.", "减小前连续溢出的步数。"), minimum=1),
    _number("floor", Text("Where backing off stops.", "减小的下限。"), above=0),
    _number("ceiling", Text("Where growth stops.", "增大的上限。"), above=0),
)


def is_our_module(settings: Settings) -> bool:
    """Returns whether the source has the constants of the written module."""
    return all(settings.has(name) for name in _MINE)

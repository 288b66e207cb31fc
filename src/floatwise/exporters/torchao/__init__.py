# SPDX-License-Identifier: Apache-2.0
"""torchao's float8 training: `convert_to_float8_training` with a recipe, and MX through `MXFP8TrainingOpConfig`.

Weights stay in the format the model has; linear layers that pass the filter cast both operands to float8 for each
product, and all else computes in the autocast format, bfloat16 here.
"""

from __future__ import annotations

from floatwise.exporters.system import System
from floatwise.exporters.torchao.knobs import KNOBS
from floatwise.exporters.torchao.read import read, recognises
from floatwise.exporters.torchao.rows import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.torchao.write import write
from floatwise.language import Text

__all__ = ["TORCHAO"]

TORCHAO = System(
    name="torchao",
    title="torchao",
    summary=Text(
        "float8 linear layers by torchao.float8, with a filter for the modules that stay in higher precision",
        "用 torchao.float8 把线性层换成 float8，并用过滤函数排除保持较高精度的模块",
    ),
    distribution="torchao",
    read_version="0.18.0",
    oldest="0.9",
    forms={"python": "torchao_float8.py"},
    knobs=KNOBS,
    closed=("Float8LinearConfig", "convert_to_float8_training", "MXFP8TrainingOpConfig"),
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

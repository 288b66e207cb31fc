# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM: the flags of `megatron/training/arguments.py`.

With `--bf16` or `--fp16` the model itself is cast, and the optimizer keeps float32 weights beside it. Megatron's
`--yaml-cfg` is not written: with it all flags are ignored, so a file with the precision alone would not start.
"""

from __future__ import annotations

from floatwise.exporters.megatron.knobs import KNOBS, READ_VERSION
from floatwise.exporters.megatron.read import read, recognises
from floatwise.exporters.megatron.rows import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.megatron.write import write
from floatwise.exporters.system import System
from floatwise.language import Text

__all__ = ["MEGATRON"]

MEGATRON = System(
    name="megatron",
    title="Megatron-LM",
    summary=Text("precision flags of Megatron-LM's training scripts", "Megatron-LM 训练脚本的精度参数"),
    distribution="megatron-core",
    read_version=READ_VERSION,
    oldest="0.12",
    forms={"flags": "megatron_precision.args"},
    knobs=KNOBS,
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

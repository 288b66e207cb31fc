# SPDX-License-Identifier: Apache-2.0
"""JAX: jmp's policy string, the dtypes of Flax modules (linen and nnx), matmul precision, and Flax's DynamicScale."""

from __future__ import annotations

from floatwise.exporters.jax.knobs import KNOBS
from floatwise.exporters.jax.read import read, recognises
from floatwise.exporters.jax.rows import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.jax.write import write
from floatwise.exporters.system import System
from floatwise.language import Text

__all__ = ["JAX"]

JAX = System(
    name="jax",
    title="JAX",
    summary=Text(
        "jmp's policy string, dtypes of Flax modules, matmul precision and Flax's DynamicScale",
        "jmp 的策略字符串、Flax 模块的 dtype、矩阵乘法精度，以及 Flax 的 DynamicScale",
    ),
    distribution="jax",
    read_version="0.10.2",
    oldest="0.4",
    forms={"python": "jax_precision.py"},
    knobs=KNOBS,
    closed=("DynamicScale",),
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

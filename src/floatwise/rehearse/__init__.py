# SPDX-License-Identifier: Apache-2.0
"""What CUDA mixed precision would do, computed on any machine.

Importing this package loads no framework; its names load PyTorch when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatwise.rehearse.baseline import measure_baseline
    from floatwise.rehearse.float8 import Float8Linears
    from floatwise.rehearse.islands import judge_by_rehearsal
    from floatwise.rehearse.memory import predict_memory
    from floatwise.rehearse.products import MatrixUnits
    from floatwise.rehearse.roofline import predict_speed
    from floatwise.rehearse.roofline_step import record_step
    from floatwise.rehearse.training import Training

__all__ = [
    "Float8Linears",
    "MatrixUnits",
    "Training",
    "judge_by_rehearsal",
    "measure_baseline",
    "predict_memory",
    "predict_speed",
    "record_step",
]

_WHERE = {
    "Float8Linears": "float8",
    "MatrixUnits": "products",
    "Training": "training",
    "judge_by_rehearsal": "islands",
    "measure_baseline": "baseline",
    "predict_memory": "memory",
    "predict_speed": "roofline",
    "record_step": "roofline_step",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"floatwise.rehearse.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'floatwise.rehearse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

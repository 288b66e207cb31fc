# SPDX-License-Identifier: Apache-2.0
"""Keras: dtype policies, set before the first layer is made, and the optimizer that scales the loss.

`compile()` adds a LossScaleOptimizer only where the model's policy is named `mixed_float16`: not for a map of
policies, nor for layers with policies of their own. So the optimizer is wrapped in the exported source, once:
`compile()` leaves a wrapped one alone.
"""

from __future__ import annotations

from floatwise.exporters.keras.knobs import KNOBS
from floatwise.exporters.keras.read import read, recognises
from floatwise.exporters.keras.rows import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.keras.write import write
from floatwise.exporters.system import System
from floatwise.language import Text

__all__ = ["KERAS"]

KERAS = System(
    name="keras",
    title="Keras",
    summary=Text(
        "dtype policies, by layer where the plan asks, and the LossScaleOptimizer",
        "dtype 策略（必要时按层设置）和 LossScaleOptimizer",
    ),
    distribution="keras",
    read_version="3.15.1",
    oldest="2.6",
    forms={"python": "keras_precision.py"},
    knobs=KNOBS,
    closed=("LossScaleOptimizer",),
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

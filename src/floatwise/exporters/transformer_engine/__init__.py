# SPDX-License-Identifier: Apache-2.0
"""NVIDIA TransformerEngine: a recipe object and the context that its modules read it from.

Only TransformerEngine's own modules multiply in float8; what they do otherwise follows torch.autocast.
"""

from __future__ import annotations

from floatwise.exporters.system import System
from floatwise.exporters.transformer_engine.knobs import KNOBS, RECIPES
from floatwise.exporters.transformer_engine.read import read, recognises
from floatwise.exporters.transformer_engine.rows import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.transformer_engine.write import write
from floatwise.language import Text

__all__ = ["TRANSFORMER_ENGINE"]

TRANSFORMER_ENGINE = System(
    name="transformer-engine",
    title="TransformerEngine",
    summary=Text(
        "a float8 recipe and the autocast context of transformer_engine.pytorch",
        "transformer_engine.pytorch 的 float8 配方和 autocast 上下文",
    ),
    distribution="transformer-engine",
    read_version="2.20.2",
    oldest="1.0",
    forms={"python": "te_precision.py"},
    knobs=KNOBS,
    closed=RECIPES,
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

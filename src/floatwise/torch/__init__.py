# SPDX-License-Identifier: Apache-2.0
"""The PyTorch runtime: a plan applied to a model, its optimizers and its loss."""

from __future__ import annotations

from floatwise.torch.islands import apply_islands
from floatwise.torch.loss_scaler import LossScaler
from floatwise.torch.paths import module_paths
from floatwise.torch.prepare import Precision, StepInfo, prepare
from floatwise.torch.region import autocast_region

__all__ = [
    "LossScaler",
    "Precision",
    "StepInfo",
    "apply_islands",
    "autocast_region",
    "module_paths",
    "prepare",
]

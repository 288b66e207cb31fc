# SPDX-License-Identifier: Apache-2.0
"""The PyTorch runtime: a plan applied to a model, its optimizers and its loss."""

from __future__ import annotations

from floatwise.torch.average import WeightAverage
from floatwise.torch.distributed.fsdp2 import fully_shard_policy
from floatwise.torch.islands import apply_islands
from floatwise.torch.masters import MasterWeights
from floatwise.torch.paths import module_paths
from floatwise.torch.prepare import Precision, StepInfo, prepare
from floatwise.torch.region import autocast_region
from floatwise.torch.scaling.account import ScaleChange
from floatwise.torch.scaling.loss_scaler import LossScaler
from floatwise.torch.scaling.report import NonFiniteGradient

__all__ = [
    "LossScaler",
    "MasterWeights",
    "NonFiniteGradient",
    "Precision",
    "ScaleChange",
    "StepInfo",
    "WeightAverage",
    "apply_islands",
    "autocast_region",
    "fully_shard_policy",
    "module_paths",
    "prepare",
]

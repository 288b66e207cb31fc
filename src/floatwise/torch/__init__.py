# SPDX-License-Identifier: Apache-2.0
"""The PyTorch runtime: a plan applied to a model, its optimizers and its loss."""

from __future__ import annotations

from floatwise.torch.average import WeightAverage
from floatwise.torch.distributed_fsdp2 import fully_shard_policy
from floatwise.torch.islands import apply_islands
from floatwise.torch.loss_scaler import LossScaler
from floatwise.torch.masters import MasterWeights
from floatwise.torch.paths import module_paths
from floatwise.torch.prepare import Precision, StepInfo, prepare
from floatwise.torch.region import autocast_region

__all__ = [
    "LossScaler",
    "MasterWeights",
    "Precision",
    "StepInfo",
    "WeightAverage",
    "apply_islands",
    "autocast_region",
    "fully_shard_policy",
    "module_paths",
    "prepare",
]

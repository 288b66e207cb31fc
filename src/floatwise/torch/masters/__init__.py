# SPDX-License-Identifier: Apache-2.0
"""Master weights: 16-bit parameters that any optimizer updates as if they were float32."""

from __future__ import annotations

from floatwise.torch.masters.gradients import allow_float32_grad, raise_grad
from floatwise.torch.masters.granularity import granularity_of
from floatwise.torch.masters.model_checkpoints import Float32Checkpoints, float32_checkpoints
from floatwise.torch.masters.optimizer import MasterWeights
from floatwise.torch.masters.optimizer_checkpoints import keep_states_float32, raise_states
from floatwise.torch.masters.registry import drop_master, float32_value, give_master, set_float32_value, stored_of
from floatwise.torch.masters.split import kernel_in_use
from floatwise.torch.masters.step import MasterStep

__all__ = [
    "Float32Checkpoints",
    "MasterStep",
    "MasterWeights",
    "allow_float32_grad",
    "drop_master",
    "float32_checkpoints",
    "float32_value",
    "give_master",
    "granularity_of",
    "keep_states_float32",
    "kernel_in_use",
    "raise_grad",
    "raise_states",
    "set_float32_value",
    "stored_of",
]

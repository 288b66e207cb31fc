# SPDX-License-Identifier: Apache-2.0
"""Whether autocast's cache of weights cast to 16 bits can be relied on."""

from __future__ import annotations

from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["keeps_gradients"]


@cache
def keeps_gradients() -> bool:
    """True when a cast cached under `no_grad` still passes gradients on to the weight.

    In releases without PyTorch's pull request 165068, a forward pass under `no_grad` leaves casts in the region's
    cache that a training pass after it uses: its gradients never reach the weights. This tries it out.
    """
    # Whatever mode the caller is in, the answer is kept, and no dispatch mode takes the trial for part of a training.
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        weight = torch.zeros(1, 1, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            with torch.no_grad():
                torch.mm(weight, weight)
            return torch.mm(weight, weight).requires_grad

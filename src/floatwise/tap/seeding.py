# SPDX-License-Identifier: Apache-2.0
"""Seeds for scripts that set none, and the offset of those that do."""

from __future__ import annotations

import random

import torch

from floatwise.tap.execute import shift_seeds
from floatwise.tap.patches import Patches

__all__ = ["seed_everything"]


def seed_everything(seed: int, offset: int, patches: Patches) -> None:
    """Seeds Python, NumPy and torch, and adds `offset` to the seeds the script sets later."""
    import numpy

    random.seed(seed + offset)
    numpy.random.seed(seed + offset)
    torch.manual_seed(seed + offset)
    if offset:
        shift_seeds(patches, torch, "manual_seed", offset)
        shift_seeds(patches, random, "seed", offset)
        shift_seeds(patches, numpy.random, "seed", offset)

# SPDX-License-Identifier: Apache-2.0
"""How much of a model an optimizer must see at once for its result to be what float32 weights would give."""

from __future__ import annotations

from typing import Literal

from torch import optim
from torch.optim import Optimizer

__all__ = ["Granularity", "granularity_of"]

#: `part`: any stretch of a parameter by itself. `parameter`: whole parameters, a few at a time. `all`: all at once.
Granularity = Literal["part", "parameter", "all"]

# torch.optim 2.13, by reading: each of these computes a parameter's update from that parameter alone. Some by its
# rows or its norm, and all with vector code whose last elements may round otherwise: whole parameters only.
_BY_PARAMETER = frozenset(
    getattr(optim, name)
    for name in (
        "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax Muon NAdam RAdam RMSprop Rprop SGD SparseAdam".split()
    )
    if hasattr(optim, name)
)
# Their fused kernels work on blocks of 16 elements, whatever the length, so stretches of whole blocks give the bits of
# the whole (ATen/native/cpu/FusedAdamKernel.cpp and its neighbours: one cache line a unit).
_FUSED = (optim.Adam, optim.AdamW, optim.SGD)


def granularity_of(optimizer: Optimizer) -> Granularity:
    """Returns what is known of an optimizer; `all` for those that are not PyTorch's own, which is always right."""
    if type(optimizer) in _FUSED and all(group.get("fused") for group in optimizer.param_groups):
        return "part"
    return "parameter" if type(optimizer) in _BY_PARAMETER else "all"

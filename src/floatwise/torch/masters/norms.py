# SPDX-License-Identifier: Apache-2.0
"""Parameters that stay float32 whatever the others are stored in."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["stays_float32", "weights_of_norms"]


def stays_float32(module: nn.Module) -> bool:
    """Returns whether the kernels behind a module want float32 weights beside 16-bit inputs.

    Norms with running statistics do (`batch_norm` and `instance_norm` of PyTorch 2.13).
    """
    return isinstance(module, _NormBase)


def weights_of_norms(model: nn.Module) -> list[Tensor]:
    """Returns the parameters of such modules."""
    return [p for module in model.modules() if stays_float32(module) for p in module.parameters(recurse=False)]

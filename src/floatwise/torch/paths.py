# SPDX-License-Identifier: Apache-2.0
"""Module paths as the model's author wrote them, whatever wraps the model meanwhile."""

from __future__ import annotations

from torch import nn

from floatwise.tap.walk import walk_modules

__all__ = ["module_paths"]


def module_paths(model: nn.Module) -> dict[str, nn.Module]:
    """Returns every module of `model` by its path, without the parts that wrappers add.

    A wrapper and what it wraps have the same path, and the wrapped module is the one returned. A module that is
    reachable by several paths is listed under each.

    Args:
      model: The model, wrapped (DDP, FSDP, torch.compile) or not.

    >>> list(module_paths(nn.Sequential(nn.Linear(2, 2))))
    ['', '0']
    """
    return dict(walk_modules(model))

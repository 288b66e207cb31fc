# SPDX-License-Identifier: Apache-2.0
"""Module paths as the model's author wrote them, whatever wraps the model meanwhile."""

from __future__ import annotations

from torch import nn

__all__ = ["module_paths"]

#: Wrapper class → the attribute it keeps the wrapped module under: DDP and DataParallel, torch.compile,
#: FSDP1, its activation checkpointing, DeepSpeed. Source: each class's `__init__`.
_WRAPPED_UNDER = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def module_paths(model: nn.Module) -> dict[str, nn.Module]:
    """Returns every module of `model` by its path, without the parts that wrappers add.

    A wrapper and what it wraps have the same path, and the wrapped module is the one returned. A module that
    is reachable by several paths is listed under each.

    >>> list(module_paths(nn.Sequential(nn.Linear(2, 2))))
    ['', '0']
    """
    paths: dict[str, nn.Module] = {}
    _collect(model, "", paths, inside=())
    return paths


def _collect(module: nn.Module, path: str, paths: dict[str, nn.Module], inside: tuple[nn.Module, ...]) -> None:
    if any(module is outer for outer in inside):  # a module that holds its own ancestor
        return
    paths[path] = module
    hidden = _WRAPPED_UNDER.get(type(module).__name__)
    for name, child in module.named_children():
        below = path if name == hidden else f"{path}.{name}" if path else name
        _collect(child, below, paths, (*inside, module))

# SPDX-License-Identifier: Apache-2.0
"""The modules of a model by the paths its author knows, whatever wraps it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

__all__ = ["walk_modules"]

#: Wrapper class → the attribute it keeps the wrapped module under: DDP and DataParallel, torch.compile, FSDP1,
#: its activation checkpointing, DeepSpeed, Lightning Fabric. Source: each class's `__init__`.
_WRAPPED_UNDER = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "_FabricModule": "_forward_module",
}


def walk_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields path and module, parents first, without the parts that wrappers add to paths.

    A wrapper comes right before what it wraps, under the same path. A module that is reachable by several paths
    comes once for each.
    """
    yield from _walk(model, "", ())


def _walk(module: nn.Module, path: str, inside: tuple[nn.Module, ...]) -> Iterator[tuple[str, nn.Module]]:
    if any(module is outer for outer in inside):  # a module that holds its own ancestor
        return
    yield path, module
    hidden = _WRAPPED_UNDER.get(type(module).__name__)
    for name, child in module.named_children():
        below = path if name == hidden else f"{path}.{name}" if path else name
        yield from _walk(child, below, (*inside, module))

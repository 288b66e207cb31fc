# SPDX-License-Identifier: Apache-2.0
"""Module paths that mean the same in every run of a script: which module is the model, what its parts are called."""

from __future__ import annotations

import gc
import sys
import weakref

from torch import nn

__all__ = ["ModulePaths", "strip_wrappers"]

#: Prefixes that wrappers put before a model's own paths: DDP and DataParallel, torch.compile, FSDP1.
_WRAPPER_PARTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_COMPILED_OR_DISTRIBUTED = frozenset(
    {
        "OptimizedModule",
        "DistributedDataParallel",
        "DataParallel",
        "FullyShardedDataParallel",
        "CheckpointWrapper",
    }
)


def strip_wrappers(root: nn.Module) -> dict[int, str]:
    """Returns the path of every module below `root` by `id`, without the parts that wrappers added."""
    wrappers = {name for name, m in root.named_modules() if type(m).__name__ in _COMPILED_OR_DISTRIBUTED}
    paths: dict[int, str] = {}
    for name, module in root.named_modules():
        parts, kept, seen = name.split(".") if name else [], [], ""
        for part in parts:
            if not (seen in wrappers and part in _WRAPPER_PARTS):
                kept.append(part)
            seen = f"{seen}.{part}" if seen else part
        paths[id(module)] = ".".join(kept)
    return paths


class ModulePaths:
    """Names modules by the model they belong to.

    The first model that trains has no prefix; a further one (a GAN's other network, a loss module) is prefixed
    with the name its script gave it, or its class name.
    """

    def __init__(self) -> None:
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._labels: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._used: set[str] = set()

    def of(self, module: nn.Module) -> str:
        """Returns the path of `module`, finding out where it belongs when it is new."""
        path = self._paths.get(module)
        if path is None:
            self._name_all_in(_outermost_owner(module))
            path = self._paths.setdefault(module, self._unique(type(module).__name__))
        return path

    def knows(self, module: nn.Module) -> bool:
        """True when `module` has been named."""
        return module in self._paths

    def _name_all_in(self, model: nn.Module) -> None:
        label = self._labels.get(model)
        if label is None:
            label = self._labels[model] = self._label(model)
        by_id = strip_wrappers(model)
        for module in model.modules():
            path = by_id[id(module)]
            full = f"{label}.{path}" if label and path else label or path
            self._paths.setdefault(module, full)

    def _label(self, model: nn.Module) -> str:
        if next(model.parameters(), None) is not None and "" not in self._used:
            self._used.add("")
            return ""
        return self._unique(_name_in_script(model) or type(model).__name__)

    def _unique(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._used:
            count += 1
            candidate = f"{name}_{count}"
        self._used.add(candidate)
        return candidate


def _outermost_owner(module: nn.Module) -> nn.Module:
    """Finds the largest module that contains `module`: a model whose parts are called one by one is one model."""
    owner, size = module, sum(1 for _ in module.modules())
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), nn.Module) or candidate is module:
            continue
        try:
            members = list(candidate.modules())
        except Exception:  # a module half built or half torn down elsewhere in the process
            continue
        if len(members) > size and any(m is module for m in members):
            owner, size = candidate, len(members)
    return owner


def _name_in_script(model: nn.Module) -> str | None:
    main = sys.modules.get("__main__")
    for name, value in list(vars(main).items()) if main else []:
        if value is model and not name.startswith("_"):
            return name
    return None

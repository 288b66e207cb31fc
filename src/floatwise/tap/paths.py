# SPDX-License-Identifier: Apache-2.0
"""Module paths that mean the same in every run of a script: which module is the model, what its parts are called."""

from __future__ import annotations

import gc
import sys
import weakref

from torch import nn

from floatwise.tap.walk import walk_modules

__all__ = ["ModulePaths"]


class ModulePaths:
    """Names modules by the model they belong to.

    The first model with something to train has no prefix; a further one (a GAN's other network, a loss module) is
    prefixed with the name its script gave it, or its class name. A part that ran before its model was made is
    named anew with the model. The name of a module that is gone is free again: a loss module made anew in every
    step is one module.
    """

    def __init__(self) -> None:
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._owners: dict[str, weakref.ref[nn.Module]] = {}
        self._loose: set[type[nn.Module]] = set()

    def of(self, module: nn.Module) -> str:
        """Returns the path of `module`, finding out where it belongs when it is new."""
        path = self._paths.get(module)
        if path is None:
            self._name_all_in(self._model_of(module))
            path = self._paths[module]
        return path

    def _model_of(self, module: nn.Module) -> nn.Module:
        for model in list(self._models):
            if any(member is module for member in model.modules()):
                return model  # it was given a new part
        # Looking at every object takes a tenth of a second, too long for a module that is made in every step.
        bare = next(module.parameters(), None) is None
        if bare and type(module) in self._loose:
            return module
        owner = _outermost_owner(module)
        if bare and owner is module:
            self._loose.add(type(module))
        return owner

    def _name_all_in(self, model: nn.Module) -> None:
        label = self._models.get(model)
        if label is None:
            self._forget_parts_of(model)
            label = self._models[model] = self._label(model)
        for path, module in walk_modules(model):
            full = f"{label}.{path}" if label and path else label or path
            self._paths.setdefault(module, full)

    def _forget_parts_of(self, model: nn.Module) -> None:
        members = set(map(id, model.modules()))
        for part in [m for m in self._models if id(m) in members]:
            self._owners.pop(self._models.pop(part))
            for module in part.modules():
                self._paths.pop(module, None)

    def _label(self, model: nn.Module) -> str:
        if any(parameter.requires_grad for parameter in model.parameters()) and self._is_free(""):
            return self._taken("", model)
        name = _name_in_script(model) or type(model).__name__
        count = 1
        while not self._is_free(label := name if count == 1 else f"{name}_{count}"):
            count += 1
        return self._taken(label, model)

    def _is_free(self, label: str) -> bool:
        owner = self._owners.get(label)
        return owner is None or owner() is None

    def _taken(self, label: str, model: nn.Module) -> str:
        self._owners[label] = weakref.ref(model)
        return label


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

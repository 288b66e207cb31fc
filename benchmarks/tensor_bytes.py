# SPDX-License-Identifier: Apache-2.0
"""Bytes of real tensors by what they are for, counted while a step runs."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from floatwise.torch.masters import stored_of

__all__ = ["Census", "WeightCopies", "storages"]

Storages = dict[int, int]


def storages(tensors: Iterable[Tensor]) -> Storages:
    """Returns the bytes of each storage by address; a storage that several tensors share counts once."""
    found: Storages = {}
    for tensor in tensors:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):  # torchao's quantized states, DTensors: what they are made of
        names, _ = wrapper.__tensor_flatten__()
        for name in names:
            yield from _parts(getattr(wrapper, name))
    elif tensor.device.type == "cpu" and tensor.layout is torch.strided and not isinstance(tensor, FakeTensor):
        yield tensor


def _live_tensors() -> Iterator[Tensor]:
    for candidate in gc.get_objects():
        if issubclass(type(candidate), Tensor):
            yield candidate
            if candidate.is_leaf and candidate.grad is not None:
                yield candidate.grad


class WeightCopies(TorchDispatchMode):
    """Remembers copies of weights in another format, and tells how many bytes of them still live.

    Autograd keeps such copies for the backward where no Python object shows them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._weights = set(storages(model.parameters()))
        self._copies: list[tuple[StorageWeakRef, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and storages(args[:1]).keys() & self._weights:
            storage = result.untyped_storage()
            self._copies.append((StorageWeakRef(storage), storage.nbytes()))
        return result

    def live_bytes(self) -> int:
        """Returns the bytes of the copies that something still holds."""
        return sum(size for reference, size in self._copies if not reference.expired())


@dataclass
class Census:
    """Bytes by kind. Make it before the variant is built: what lives then, the weights aside, is no variant's.

    Attributes:
      copies: Copies of weights in another format, when the backward begins.
      gradients: When the backward has ended.
      weights: After the step, with what Floatwise keeps beside 16-bit ones.
      states: The optimizer's, after the step.
      other: All else that lives after the step and did not before the variant was built, such as working memory
        of a fixed size.
    """

    copies: int = 0
    gradients: int = 0
    weights: int = 0
    states: int = 0
    other: int = 0

    def __post_init__(self) -> None:
        self._before = set(storages(_live_tensors()))

    def before_backward(self, copies: WeightCopies) -> None:
        """Counts the copies of weights that the forward made and the backward will read."""
        self.copies = copies.live_bytes()

    def after_backward(self, model: nn.Module) -> None:
        """Counts the gradients."""
        self.gradients = _sum(storages(p.grad for p in model.parameters() if p.grad is not None))

    def after_step(self, model: nn.Module, optimizer: Optimizer, batch: Iterable[Tensor]) -> None:
        """Counts what lives on from step to step."""
        weights = storages(model.parameters()) | storages(_beside(model))
        states = storages(v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))
        known = self._before | weights.keys() | states.keys() | storages(batch).keys()
        gc.collect()
        self.weights, self.states = _sum(weights), _sum(states)
        self.other = sum(size for address, size in storages(_live_tensors()).items() if address not in known)

    def per_parameter(self, parameters: int) -> dict[str, float]:
        """Returns bytes per parameter by kind, and `all` of them; `other` does not grow with the model."""
        kinds = {"weights": self.weights, "gradients": self.gradients, "states": self.states, "casts": self.copies}
        return {kind: size / parameters for kind, size in {**kinds, "all": sum(kinds.values())}.items()}


def _beside(model: nn.Module) -> Iterator[Tensor]:
    for parameter in model.parameters():
        stored = stored_of(parameter)
        if stored is not None and stored.master.extra is not None:
            yield stored.master.extra


def _sum(found: Storages) -> int:
    return sum(found.values())

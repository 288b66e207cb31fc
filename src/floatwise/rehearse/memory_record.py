# SPDX-License-Identifier: Apache-2.0
"""Watches which tensors a training step makes and when each is released, of real tensors or of fake ones."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from floatwise.rehearse.memory_curve import Moment, Phase, undominated

__all__ = ["MemoryRecorder", "storages_bytes"]

Kind = Literal["activation", "cast", "gradient", "state"]

_CAST = torch.ops.aten._to_copy.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


@dataclass(slots=True)
class _Block:
    """A storage that an operator made."""

    size: int
    kind: Kind


class MemoryRecorder(TorchDispatchMode):
    """Records the memory of one training step; active while it is open as a context.

    It sees what operators return, as `torch.distributed._tools.mem_tracker.MemTracker` does, and of what they take for
    themselves while they run only what is large; see `_workspace_bytes`.

    Args:
      parameters: The model's parameters: known from the start, and owners of the gradients.
      known: Further tensors that exist already: buffers, optimizer states, the batch.
    """

    def __init__(self, parameters: Iterable[Tensor], known: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._parameters = list(parameters)
        self._blocks: dict[int, _Block] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._events: list[tuple[Phase, _Block, int]] = []
        self._weights = {_key(storage) for p in self._parameters for storage in _storages(p)}
        # Held, so that no new storage takes the identity of one that is gone.
        self._held = [storage for t in (*self._parameters, *known) for storage in _storages(t)]
        self._known = {_key(storage) for storage in self._held}
        self.phase: Phase = "forward"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator and notes the storages that it made."""
        result = func(*args, **(kwargs or {}))
        self.seen(func, args, kwargs or {}, result)
        return result

    def seen(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Notes the storages that an operator made."""
        if func.namespace == "prim":  # a question, such as where a fake tensor is
            return
        is_cast = func is _CAST and any(_key(s) in self._weights for s in _storages(args[0]))
        taken = _workspace_bytes(func, args)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                for storage in _storages(leaf):
                    self._note(storage, is_cast)
        if taken:  # alive together with the results
            block = _Block(taken, "activation")
            self._events += [(self.phase, block, taken), (self.phase, block, -taken)]

    def note_gradients(self) -> None:
        """Tells gradients from the rest; call it when the backward pass has ended and before they are dropped."""
        self._are("gradient", (p.grad for p in self._parameters if p.grad is not None))

    def note_states(self, states: Iterable[Tensor]) -> None:
        """Tells what an optimizer keeps from what its step takes; call it while they are alive."""
        self._are("state", states)

    def moments(self) -> tuple[Moment, ...]:
        """Returns the moments of the two passes that can be the peak."""
        alive = dict.fromkeys(("activation", "cast", "gradient", "state"), 0)
        moments: list[Moment] = []
        for phase, block, size in self._events:
            alive[block.kind] += size
            if size > 0 and phase != "update":
                moments.append(Moment(phase, alive["activation"], alive["cast"], alive["gradient"]))
        return undominated(moments)

    def update_bytes(self) -> int:
        """Returns the most that the update took for itself, beside states."""
        alive = peak = 0
        for phase, block, size in self._events:
            if phase == "update" and block.kind == "activation":
                alive += size
                peak = max(peak, alive)
        return peak

    def _are(self, kind: Kind, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            for storage in _storages(tensor):
                block = self._blocks.get(_key(storage))
                if block is not None:
                    block.kind = kind

    def _note(self, storage: torch.UntypedStorage, is_cast: bool) -> None:
        key = _key(storage)
        if key in self._known or key in self._blocks:
            return
        block = _Block(storage.nbytes(), "cast" if is_cast else "activation")
        self._blocks[key] = block
        self._events.append((self.phase, block, block.size))

        def released(_: Any) -> None:
            del self._blocks[key], self._references[key]
            self._events.append((self.phase, block, -block.size))

        self._references[key] = weakref.ref(storage, released)


def storages_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of the storages behind tensors, each once."""
    return sum({_key(storage): storage.nbytes() for t in tensors for storage in _storages(t)}.values())


def _workspace_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Returns what an operator takes for itself and gives back, where it is known to matter.

    Seen with torch 2.13 on a CPU: a convolution's backward copies the gradient it is given into a layout of oneDNN's
    own, and makes the weight's in float32. On CUDA it depends on the algorithm that cuDNN chooses.
    """
    if func is not _CONVOLUTION_BACKWARD:
        return 0
    gradient, _, weight = args[:3]
    return int(gradient.numel() * gradient.element_size() + 4 * weight.numel())


def _key(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)


def _storages(tensor: Any) -> Iterator[torch.UntypedStorage]:
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            part = getattr(tensor, name)
            if isinstance(part, Tensor):
                yield from _storages(part)
    elif isinstance(tensor, Tensor) and tensor.layout is torch.strided:
        yield tensor.untyped_storage()

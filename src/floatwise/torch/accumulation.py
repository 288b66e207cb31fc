# SPDX-License-Identifier: Apache-2.0
"""Gradients of several micro-batches: summed on each rank, in float32, and reduced over the ranks once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import TensorWeakRef

from floatwise.errors import BadInputError
from floatwise.torch.masters.gradients import allow_float32_grad, forbid_float32_grad, raise_grad

__all__ = ["Accumulation", "without_reduction"]


class Accumulation:
    """Where in a step a training loop is, and what its next backward pass adds to.

    Sums of 16-bit gradients stop growing after some 256 summands, so those of 16-bit weights are kept in float32.
    DDP takes them in the weights' format only: what was summed on the rank is rounded to it once, before the last
    backward pass, whose gradient has that format, too; what DDP has reduced already is put aside meanwhile.

    Args:
      model: The model; wrappers may be anywhere in it.
      weights: Its 16-bit weights that are trained.
    """

    def __init__(self, model: nn.Module, weights: Sequence[Tensor]) -> None:
        # Weak: whoever trains keeps the model, and this must not keep one that nobody trains any more.
        self._model = weakref.ref(model)
        self._weights = [TensorWeakRef(weight) for weight in weights]
        self._ddp = weakref.WeakSet(m for m in model.modules() if isinstance(m, DistributedDataParallel))
        self._in_ddp = {id(p) for module in self._ddp for p in module.parameters()}
        self._last = True
        self._unreduced = False
        self._has_local_sums = False

    def within(self, model: nn.Module) -> Accumulation:
        """Returns the same for a wrapper that was put around the model since."""
        return Accumulation(model, self._living_weights())

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Context of a micro-batch; its gradients stay on the rank unless it is the last of a step."""
        before, self._last = self._last, last
        try:
            if last:
                yield
            else:
                with without_reduction(self._living_model()):
                    yield
        finally:
            self._last = before

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Context of one backward pass, within `micro_batch`, within DDP's own `no_sync`, or in neither."""
        is_local = not self._last or any(not module.require_backward_grad_sync for module in self._ddp)
        aside: list[tuple[Tensor, Tensor]] = []
        for weight in self._living_weights():
            grad = weight.grad
            if grad is None:
                # Always the same, so that the first of a step is as the first after a resume: DDP takes gradients in
                # the weights' format only, elsewhere float32 ones, which some operators give, are welcome.
                (forbid_float32_grad if id(weight) in self._in_ddp else allow_float32_grad)(weight)
                continue
            if grad.is_sparse:
                continue
            if id(weight) not in self._in_ddp or is_local:
                raise_grad(weight)
            elif self._has_local_sums:
                weight.grad = None
                weight.grad = grad.to(weight.dtype)
            elif hasattr(weight, "grad_dtype"):  # torch 2.10; before, it has the weight's format, and is added to
                aside.append((weight, grad))
                weight.grad = None
        try:
            yield
        finally:
            self._unreduced, self._has_local_sums = not self._last, is_local
            for weight, grad in aside:
                new, weight.grad = weight.grad, None
                allow_float32_grad(weight)
                weight.grad = grad.float() if new is None else torch.add(grad.float(), new)

    def _living_weights(self) -> list[Tensor]:
        return [weight for reference in self._weights if (weight := reference()) is not None]

    def _living_model(self) -> nn.Module:
        model = self._model()
        return model if model is not None else nn.Module()

    def check_reduced(self) -> None:
        """Raises BadInputError when the last micro-batch was not the last of a step."""
        if self._unreduced:
            raise BadInputError(
                "got a step after accumulate(last=False), whose gradients are not reduced over the ranks; the "
                "micro-batch before a step runs in accumulate(last=True), also an early one at the end of the data"
            )

    def drop(self) -> None:
        """Takes note that there are no gradients any more."""
        self._unreduced = self._has_local_sums = False


@contextmanager
def without_reduction(model: nn.Module) -> Iterator[None]:
    """Keeps the gradients of forward and backward passes within the block from being reduced over the ranks.

    They are added to those of this rank. DDP and FSDP1 do this by `no_sync`, FSDP2 by `set_requires_gradient_sync`,
    which is on again afterwards. A model that no wrapper distributes is left alone. FSDP keeps whole gradients in
    memory until they are reduced.

    Args:
      model: The model; the wrappers may be anywhere in it, also under `torch.compile`.
    """
    with ExitStack() as stack:
        for wrapper in _distributed(model):
            if _is_fsdp2(wrapper):
                wrapper.set_requires_gradient_sync(False)
                stack.callback(wrapper.set_requires_gradient_sync, True)
            else:
                stack.enter_context(wrapper.no_sync())
        yield


def _distributed(module: nn.Module) -> Iterator[Any]:
    """Yields the outermost wrappers; what they call for themselves reaches those inside.

    The type is asked: a compiled module hands on the attributes of what it compiled, which is met later.
    """
    if _is_fsdp2(module) or hasattr(type(module), "no_sync"):
        yield module
    else:
        for child in module.children():
            yield from _distributed(child)


def _is_fsdp2(module: nn.Module) -> bool:
    return hasattr(type(module), "set_requires_gradient_sync")

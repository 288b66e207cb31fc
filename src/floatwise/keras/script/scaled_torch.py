# SPDX-License-Identifier: Apache-2.0
"""The gradients that a script takes on the torch backend, of the scaled loss and unscaled again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from floatwise.keras.script.run_scale import RunScale
from floatwise.tap.patches import Patches

__all__ = ["scale_gradients"]


def scale_gradients(
    patches: Patches, scale: RunScale, is_scaling: Callable[[], bool], parameters: Callable[[], Iterable[Tensor]]
) -> None:
    """Replaces `backward` and `torch.autograd.grad`, and has torch's own optimizers skip bad steps.

    Args:
      patches: Takes the replacements.
      scale: The loss scale.
      is_scaling: Whether anything computes in float16 by now.
      parameters: Those of the models under the plan.
    """

    def backward(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scaled(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if not is_scaling() or scale.is_scaled_elsewhere():
                original(tensors, grad_tensors, *args, **kwargs)
                return
            leaves = [p for p in parameters() if p.requires_grad]
            before = [p.grad for p in leaves]
            for leaf in leaves:
                leaf.grad = None
            original(tensors, _seeds(scale, tensors, grad_tensors), *args, **kwargs)
            with torch.no_grad():
                for leaf, old, new in zip(leaves, before, scale.unscaled([p.grad for p in leaves]), strict=True):
                    leaf.grad = new if old is None else old if new is None else old.add_(new)

        return scaled

    def grad(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scaled(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
            known = {id(p) for p in parameters()}
            wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
            if not is_scaling() or not any(id(p) in known for p in wanted) or scale.is_scaled_elsewhere():
                return original(outputs, inputs, grad_outputs, *args, **kwargs)
            found = original(outputs, inputs, _seeds(scale, outputs, grad_outputs), *args, **kwargs)
            return tuple(scale.unscaled(found))

        return scaled

    patches.replace(torch.autograd, "backward", backward)
    patches.replace(torch.autograd, "grad", grad)
    _skip_in_torch_optimizers(patches, scale, is_scaling)


def _seeds(scale: RunScale, roots: Any, given: Any) -> list[Tensor]:
    outputs = [roots] if isinstance(roots, Tensor) else list(roots)
    seeds: Sequence[Any] = [given] if isinstance(given, Tensor) else list(given or [None] * len(outputs))
    with torch.no_grad():
        return [scale.seed_of(each, seed) for each, seed in zip(outputs, seeds, strict=True)]


def _skip_in_torch_optimizers(patches: Patches, scale: RunScale, is_scaling: Callable[[], bool]) -> None:
    hidden: list[tuple[Tensor, Tensor]] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_scaling() and scale.has_unscaled:
            stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            with torch.no_grad():
                if not scale.moved([p.grad for p in stepped]):
                    hidden.extend((p, p.grad) for p in stepped)
                    for parameter in stepped:
                        parameter.grad = None

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter, gradient in hidden:
            parameter.grad = gradient
        hidden.clear()

    patches.on_undo(register_optimizer_step_pre_hook(before).remove)
    patches.on_undo(register_optimizer_step_post_hook(after).remove)

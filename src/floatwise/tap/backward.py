# SPDX-License-Identifier: Apache-2.0
"""Backward passes: `loss.backward()` and everything else that ends in `torch.autograd.backward`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from floatwise.tap.tensors import values_are_real

if TYPE_CHECKING:
    from floatwise.tap.core import Tap

__all__ = ["BackwardTap", "leaves_of"]


class BackwardTap:
    """Replaces `torch.autograd.backward`, which `Tensor.backward` and every trainer call.

    `torch.autograd.grad` with respect to parameters is a backward pass, too: of a script that updates by hand.
    """

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    def install(self) -> None:
        """Puts the replacement in place until the tap's patches are undone."""

        def make(original: Any) -> Any:
            def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
                own = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
                if self._is_watched(own):
                    self._backward(original, own, args, kwargs)
                else:
                    original(tensors, *args, **kwargs)

            return backward

        self.tap.patches.replace(torch.autograd, "backward", make)
        self.tap.patches.replace(torch.autograd, "grad", self._grad)

    def _grad(self, original: Any) -> Any:
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            wanted, own = _materialised(inputs), _materialised(outputs)
            parameters = [t for t in wanted if isinstance(t, Tensor) and t.is_leaf]
            first_order = not (args[2] if len(args) > 2 else kwargs.get("create_graph", False))
            if not parameters or not first_order or not self._is_watched(own):
                return original(own, wanted, *args, **kwargs)  # either may have been a generator
            self.tap.steps.before_backward(own)
            self.tap.local.in_backward = True  # under a function mode it calls itself
            try:
                gradients = original(own, wanted, *args, **kwargs)
            finally:
                self.tap.local.in_backward = False
            self._over(own)
            return gradients

        return grad

    def _is_watched(self, roots: tuple[Any, ...]) -> bool:
        if self.tap.is_elsewhere() or getattr(self.tap.local, "in_backward", False) or not values_are_real():
            return False
        return all(isinstance(root, Tensor) for root in roots)  # not edges of a graph: a pipeline's stages

    def _backward(self, original: Any, own: tuple[Tensor, ...], args: tuple[Any, ...], kwargs: Any) -> None:
        self.tap.steps.before_backward(own)
        roots: Sequence[Tensor] = own
        for observer in self.tap.observers:
            roots = observer.backward_starts(roots)
        self.tap.local.in_backward = True
        operators = self.tap.operators
        try:
            if operators is None:
                original(tuple(roots), *args, **kwargs)
            else:
                operators.run_backward(original, tuple(roots), args, kwargs)
        except BaseException:
            for observer in self.tap.observers:
                observer.backward_failed()
            raise
        finally:
            self.tap.local.in_backward = False
        self._over(own)

    def _over(self, own: Sequence[Tensor]) -> None:
        for observer in self.tap.observers:
            observer.backward_ended(own)
        self.tap.steps.after_backward()
        self.tap.modules.forget_script_calls()


def _materialised(tensors: Any) -> tuple[Any, ...]:
    """Returns what `torch.autograd.grad` was given as a tuple; it may have been one tensor, an edge or a generator."""
    return (tensors,) if isinstance(tensors, (Tensor, GradientEdge)) else tuple(tensors)


def leaves_of(roots: Sequence[Tensor], most_nodes: int = 200_000) -> Iterator[Tensor]:
    """Yields the leaf tensors that a backward pass from `roots` gives gradients to, in graph order."""
    pending: list[Any] = [r.grad_fn for r in roots if r.grad_fn is not None]
    for root in roots:
        if root.grad_fn is None and root.requires_grad:
            yield root
    seen: set[Any] = set(pending)
    while pending and len(seen) < most_nodes:
        node = pending.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)

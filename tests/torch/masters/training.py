# SPDX-License-Identifier: Apache-2.0
"""Float32 training and training with master weights, side by side and given the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.torch.masters import MasterWeights

__all__ = ["SHAPES", "GlobalNorm", "Lion", "Sam", "SideBySide", "parameters", "same_bits", "same_states"]

#: Odd sizes, more than one stretch of 64 elements, one dimension, none, and no elements at all.
SHAPES = ((13, 17), (33,), (8, 3, 3, 3), (1,), (), (0, 4), (64,), (5, 7))


def parameters(shapes: Iterable[Sequence[int]] = SHAPES) -> list[nn.Parameter]:
    """Returns float32 parameters; the four-dimensional ones in channels_last."""
    made = [torch.randn(tuple(shape)) for shape in shapes]
    return [nn.Parameter(t.to(memory_format=torch.channels_last) if t.dim() == 4 else t) for t in made]


class SideBySide:
    """The same training with float32 weights and with bfloat16 weights that have masters.

    Args:
      make: Makes the optimizer.
      mode: Of the masters.
      of: The float32 parameters; their values are copied.
      **options: Of `MasterWeights`.
    """

    def __init__(
        self,
        make: Callable[[list[Any]], Optimizer],
        mode: str = "split",
        of: Sequence[nn.Parameter] | None = None,
        **options: Any,
    ) -> None:
        self.wide = list(of) if of is not None else parameters()
        self.low = [nn.Parameter(p.detach().clone(), p.requires_grad) for p in self.wide]
        self.reference = make(list(self.wide))
        self.optimizer = MasterWeights(make(list(self.low)), mode, dtype=torch.bfloat16, **options)

    def give_gradients(self, without: Iterable[int] = (), scale: float = 1.0) -> None:
        """Gives both the same gradients, which bfloat16 can hold, each in its parameter's layout."""
        for index, (wide, low) in enumerate(zip(self.wide, self.low, strict=True)):
            if index in without:
                wide.grad = low.grad = None
                continue
            low.grad = torch.empty_like(low).copy_(torch.randn(low.shape) * scale)
            wide.grad = low.grad.float()

    def train(self, steps: int = 4, without: Iterable[int] = ()) -> None:
        """Steps both."""
        for _ in range(steps):
            self.give_gradients(without)
            self.reference.step()
            self.optimizer.step()

    def check(self) -> None:
        """Asserts that weights and optimizer states are the same, bit for bit."""
        for wide, low in zip(self.wide, self.low, strict=True):
            assert low.dtype is torch.bfloat16
            assert same_bits(self.optimizer.master(low), wide)
            assert torch.equal(low, wide.bfloat16()) or _differs_in_ties_only(low, wide)
        assert same_states(
            [self.reference.state.get(p, {}) for p in self.wide], [self.optimizer.state.get(p, {}) for p in self.low]
        )


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Returns whether float32 tensors are the same, signs of zeros and NaNs included."""
    return left.shape == right.shape and torch.equal(
        left.detach().contiguous().view(torch.int32), right.detach().contiguous().view(torch.int32)
    )


def same_states(left: Any, right: Any) -> bool:
    """Returns whether optimizer states are equal in values, formats and layouts."""
    if isinstance(left, Tensor):
        alike = (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
        return alike and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_states(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same_states, left, right))
    return bool(left == right)


def _differs_in_ties_only(low: Tensor, wide: Tensor) -> bool:
    # PyTorch rounds a value between two bfloat16 to the even one, `split` to the one farther from zero.
    where = low != wide.bfloat16()
    return bool(((wide.detach()[where].view(torch.int32) & 0xFFFF) == 0x8000).all())


class Lion(Optimizer):
    """A user's optimizer, of no class that Floatwise knows: Chen et al. 2023, arXiv 2302.06675, algorithm 2."""

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                beta1, beta2 = group["betas"]
                update = state["momentum"] * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["momentum"].mul_(beta2).add_(p.grad, alpha=1 - beta2)
        return loss


class GlobalNorm(Optimizer):
    """A user's optimizer that must see all gradients at once, and that writes through `.data`, as old ones do."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        with_gradient = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in with_gradient]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad / norm
        return None


class Sam(Optimizer):
    """Foret et al. 2021, arXiv 2010.01412, as it is usually written: an optimizer inside an optimizer, two passes."""

    def __init__(self, params: Any, base: Callable[..., Optimizer], rho: float = 0.05) -> None:
        super().__init__(params, {"rho": rho})
        self.base_optimizer = base(self.param_groups)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad, alpha=group["rho"])
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        closure = torch.enable_grad()(closure)
        loss = closure()
        self.first_step(zero_grad=True)
        closure()
        self.second_step()
        return loss

# SPDX-License-Identifier: Apache-2.0
"""A linear layer's three matrix products with float8 operands, as an autograd function.

The products and their operands are those of torchao 0.18 (`float8/float8_linear.py`): float32 sums of the unscaled
operands, rounded once to the dtype of the product's first operand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from floatwise.formats import Format
from floatwise.rehearse.float8_cast import CastTally, cast_operand
from floatwise.rehearse.float8_scaling import Float8Scaling
from floatwise.stats.torch import cast

__all__ = ["Float8Rules", "float8_linear"]


class Float8Rules(NamedTuple):
    """How one layer multiplies, and where it counts.

    Attributes:
      scaling: How operands are scaled.
      forward: Format of inputs and weights.
      backward: Format of gradients of outputs.
      tallies: By role: `input`, `weight`, `grad_output`.
    """

    scaling: Float8Scaling
    forward: Format
    backward: Format
    tallies: dict[str, CastTally]


def float8_linear(values: Tensor, weight: Tensor, bias: Tensor | None, rules: Float8Rules) -> Tensor:
    """Returns `values @ weight.T + bias` with float8 operands, in the dtype of `values` or of autocast.

    Args:
      values: Of shape (..., in_features), not empty.
      weight: Of shape (out_features, in_features), in any floating dtype; it is cast as it is, not by way of
        autocast's dtype.
      bias: Of shape (out_features,); added in the dtype of the output.
      rules: How to multiply.
    """
    device = values.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        values = _in_dtype(values, torch.get_autocast_dtype(device))
    output: Tensor = _Float8Linear.apply(values, weight, rules)  # type: ignore[no-untyped-call]
    return output if bias is None else output + _in_dtype(bias, output.dtype)


class _Float8Linear(torch.autograd.Function):
    """Saves what it is given, and casts again where gradients need it, as training with torchao does."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, rules: Float8Rules) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.rules = rules
        scaling, tallies = rules.scaling, rules.tallies
        with _plain_products(values.device.type):
            rows = values.reshape(-1, values.shape[-1])
            left = cast_operand(rows, rules.forward, scaling, 1, tallies["input"])
            right = cast_operand(weight, rules.forward, scaling, 1, tallies["weight"])
            product = _in_dtype(torch.mm(left, right.t()), values.dtype)
            return product.reshape(*values.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, weight = ctx.saved_tensors
        rules: Float8Rules = ctx.rules
        grads = grad_output.reshape(-1, grad_output.shape[-1])
        with _plain_products(grad_output.device.type):
            return *_gradients(grads, values, weight, rules, ctx.needs_input_grad), None


def _gradients(
    grads: Tensor, values: Tensor, weight: Tensor, rules: Float8Rules, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of `values` and `weight`, as far as they are needed."""
    scaling, tallies = rules.scaling, rules.tallies
    # With one scale for all of it, a tensor is cast alike for every product: one cast of gradients serves both, and
    # what the forward has counted is not counted again.
    shared = scaling.granularity == "tensorwise"
    by_output = grad_input = grad_weight = None
    if needed[0]:
        by_output = cast_operand(grads, rules.backward, scaling, 1, tallies["grad_output"])
        granularity = "tensorwise" if scaling.tensorwise_transposed_weight else scaling.granularity
        by_input = cast_operand(weight, rules.forward, scaling, 0, None if shared else tallies["weight"], granularity)
        grad_input = _in_dtype(torch.mm(by_output, by_input), grads.dtype).reshape(values.shape)
    if needed[1]:
        rows = values.reshape(-1, values.shape[-1])
        if scaling.rounded_weight_gradient:
            if by_output is None or not shared:
                by_output = cast_operand(grads, rules.backward, scaling, 0, tallies["grad_output"])
            by_rows = cast_operand(rows, rules.forward, scaling, 0, None if shared else tallies["input"])
        else:
            by_output, by_rows = grads.to(torch.float32), rows.to(torch.float32)
        grad_weight = _in_dtype(torch.mm(by_output.t(), by_rows), grads.dtype)
    return grad_input, grad_weight


def _in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype is dtype else cast(tensor, dtype)


@contextmanager
def _plain_products(device: str) -> Iterator[None]:
    """Keeps autocast from rounding the float32 products, and their parts from whoever listens for operators."""
    with torch._C.DisableTorchFunction():
        if torch.amp.is_autocast_available(device):
            with torch.autocast(device, enabled=False):
                yield
        else:
            yield

# SPDX-License-Identifier: Apache-2.0
"""Operators that matter for precision, called from Python inside or outside modules."""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from floatwise.tap.tensors import floating_tensors, values_are_real

if TYPE_CHECKING:
    from floatwise.tap.core import Tap
    from floatwise.tap.modules import Frame

__all__ = ["MATRIX_OPERATORS", "OperatorTap"]

#: What autocast runs in the lower precision (the operator lists of ATen/autocast_mode.h, torch 2.13).
MATRIX_OPERATORS: dict[Any, str] = {
    F.linear: "linear",
    F.bilinear: "bilinear",
    F.conv1d: "conv1d",
    F.conv2d: "conv2d",
    F.conv3d: "conv3d",
    F.conv_transpose1d: "conv_transpose1d",
    F.conv_transpose2d: "conv_transpose2d",
    F.conv_transpose3d: "conv_transpose3d",
    F.scaled_dot_product_attention: "scaled_dot_product_attention",
    torch.matmul: "matmul",
    torch.Tensor.matmul: "matmul",
    torch.Tensor.__matmul__: "matmul",
    torch.Tensor.__rmatmul__: "matmul",
    torch.mm: "mm",
    torch.Tensor.mm: "mm",
    torch.bmm: "bmm",
    torch.Tensor.bmm: "bmm",
    torch.addmm: "addmm",
    torch.Tensor.addmm: "addmm",
    torch.baddbmm: "baddbmm",
    torch.Tensor.baddbmm: "baddbmm",
    torch.addbmm: "addbmm",
    torch.Tensor.addbmm: "addbmm",
    torch.mv: "mv",
    torch.Tensor.mv: "mv",
    torch.addmv: "addmv",
    torch.Tensor.addmv: "addmv",
    torch.einsum: "einsum",
    torch.functional.einsum: "einsum",
    torch._VF.lstm: "lstm",
    torch._VF.gru: "gru",
    torch._VF.rnn_tanh: "rnn_tanh",
    torch._VF.rnn_relu: "rnn_relu",
    torch._VF.lstm_cell: "lstm_cell",
    torch._VF.rnn_tanh_cell: "rnn_tanh_cell",
    torch._VF.rnn_relu_cell: "rnn_relu_cell",
    torch._VF.gru_cell: "gru_cell",
}

#: What autocast keeps in float32 and whose inputs tell whether that is enough.
SOFTMAX_AND_LOSS_OPERATORS: dict[Any, str] = {
    F.softmax: "softmax",
    torch.softmax: "softmax",
    torch.Tensor.softmax: "softmax",
    F.log_softmax: "log_softmax",
    torch.log_softmax: "log_softmax",
    torch.Tensor.log_softmax: "log_softmax",
    F.cross_entropy: "cross_entropy",
    F.nll_loss: "nll_loss",
    F.mse_loss: "mse_loss",
    F.l1_loss: "l1_loss",
    F.smooth_l1_loss: "smooth_l1_loss",
    F.huber_loss: "huber_loss",
    F.kl_div: "kl_div",
    F.binary_cross_entropy: "binary_cross_entropy",
    F.binary_cross_entropy_with_logits: "binary_cross_entropy_with_logits",
}

#: Operands given by keyword, in the order they have by position (torch 2.13).
_OPERANDS = "input query mat1 batch1 weight key mat2 mat other vec batch2 value bias target".split()

#: What autocast leaves in the dtype of its operands: between two products of 16 bits these may overflow.
ARITHMETIC_OPERATORS: dict[Any, str] = {
    getattr(owner, name): label
    for label, names in {
        "add": ("add", "__add__", "__radd__", "add_", "__iadd__"),
        "sub": ("sub", "__sub__", "rsub", "__rsub__", "sub_", "__isub__"),
        "mul": ("mul", "__mul__", "__rmul__", "mul_", "__imul__"),
        "div": ("div", "__truediv__", "__rdiv__", "div_", "__itruediv__"),
        "masked_fill": ("masked_fill", "masked_fill_"),
        "mean": ("mean",),
    }.items()
    for name in names
    for owner in (torch, torch.Tensor)
    if hasattr(owner, name)
}

_WATCHED = {**ARITHMETIC_OPERATORS, **SOFTMAX_AND_LOSS_OPERATORS, **MATRIX_OPERATORS}
#: Calls of one operator in one forward that are sites of their own; a loop over a sequence may make thousands.
_SITES_PER_OPERATOR = 16


class OperatorTap(TorchFunctionMode):
    """Sees every torch function called from Python while the tap is open, and reports the watched ones.

    A site is `module path:operator`, with `#2`, `#3` … for further calls of one operator in one forward of its
    module; a product with the module's own weight is the module's own site (a `Linear`, a convolution, an LSTM).
    Outside of modules, what needs no gradient is the script's own arithmetic and no site.
    """

    def __init__(self, tap: Tap) -> None:
        super().__init__()
        self.tap = tap
        tap.patches.replace(F, "multi_head_attention_forward", _opened)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = _WATCHED.get(func)
        if name is not None and torch.is_grad_enabled() and values_are_real() and not self.tap.is_elsewhere():
            self._report(name, args, kwargs, output)
        return output

    def run_backward(self, backward: Any, roots: tuple[Tensor, ...], args: tuple[Any, ...], kwargs: Any) -> None:
        """Runs a backward pass with its operators in sight: checkpointing computes a forward in it.

        `Tensor.backward` and `torch.autograd.backward` are functions that a mode is handed, and what it then calls
        is out of its sight.
        """
        if any(type(root) not in (Tensor, nn.Parameter) for root in roots):
            backward(roots, *args, **kwargs)  # a subclass may have a backward pass of its own
            return
        active = any(mode is self for mode in _get_current_function_mode_stack())
        with nullcontext() if active else self:
            _opened(backward)(roots, *args, **kwargs)

    def _report(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        frame = self.tap.modules.frame()
        if frame.module is None and not any(tensor.requires_grad for tensor in floating_tensors(output)):
            return
        args = (*args, *(kwargs[k] for k in _OPERANDS if k in kwargs))
        site = self._site(name, frame, args)
        for observer in self.tap.observers:
            observer.operator_called(site, name, args, kwargs, output)

    def _site(self, name: str, frame: Frame, args: tuple[Any, ...]) -> str:
        count = frame.operator_calls[name] = frame.operator_calls.get(name, 0) + 1
        module = frame.module
        path = self.tap.paths.of(module) if module is not None else ""
        if module is not None and count == 1 and _is_own_product(module, args):
            return path
        return f"{path}:{name}" if count == 1 else f"{path}:{name}#{min(count, _SITES_PER_OPERATOR)}"


def _opened(function: types.FunctionType) -> types.FunctionType:
    """Returns a copy of a composite that hands on to no mode itself: its own calls are seen one by one."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _is_own_product(module: nn.Module, args: tuple[Any, ...]) -> bool:
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return True
    own = list(module._parameters.values())
    return len(args) > 1 and any(args[1] is p for p in own if p is not None) and not module._modules

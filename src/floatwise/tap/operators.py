# SPDX-License-Identifier: Apache-2.0
"""Operators that matter for precision, called from Python inside or outside modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from floatwise.tap.core import Tap

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
    torch.mv: "mv",
    torch.Tensor.mv: "mv",
    torch.einsum: "einsum",
    torch.functional.einsum: "einsum",
    torch._VF.lstm: "lstm",
    torch._VF.gru: "gru",
    torch._VF.rnn_tanh: "rnn_tanh",
    torch._VF.rnn_relu: "rnn_relu",
    torch._VF.lstm_cell: "lstm_cell",
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

_WATCHED = {**SOFTMAX_AND_LOSS_OPERATORS, **MATRIX_OPERATORS}


class OperatorTap(TorchFunctionMode):
    """Sees every torch function called from Python while the tap is open, and reports the watched ones.

    A site is `module path:operator`, with `#2`, `#3` … for further calls of one operator in one forward of its
    module; a product with the module's own weight is the module's own site (a `Linear`, a convolution, an LSTM).
    """

    def __init__(self, tap: Tap) -> None:
        super().__init__()
        self.tap = tap

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = _WATCHED.get(func)
        if name is not None and torch.is_grad_enabled() and not self.tap.is_elsewhere():
            site = self._site(name, args)
            for observer in self.tap.observers:
                observer.operator_called(site, name, args, kwargs, output)
        return output

    def _site(self, name: str, args: tuple[Any, ...]) -> str:
        frame = self.tap.modules.frame()
        count = frame.operator_calls[name] = frame.operator_calls.get(name, 0) + 1
        module = frame.module
        path = self.tap.paths.of(module) if module is not None else ""
        if module is not None and count == 1 and _is_own_product(module, args):
            return path
        return f"{path}:{name}" if count == 1 else f"{path}:{name}#{count}"


def _is_own_product(module: nn.Module, args: tuple[Any, ...]) -> bool:
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return True
    own = list(module._parameters.values())
    return len(args) > 1 and any(args[1] is p for p in own if p is not None) and not module._modules

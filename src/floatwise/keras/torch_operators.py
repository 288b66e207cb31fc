# SPDX-License-Identifier: Apache-2.0
"""The products that PyTorch is called for while a step runs, forward and backward."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from floatwise.census import Operator, merged

__all__ = ["ProductsCalled"]

#: ATen's products (native_functions.yaml, torch 2.13), with the place of their first operand.
_DOTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "mv": 0, "addmv": 1, "dot": 0, "linear": 0}


class ProductsCalled(TorchDispatchMode):
    """Notes matrix products and convolutions while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows: list[Operator] = []

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The products so far, alike ones counted together."""
        return merged(self._rows)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _DOTS:
            left, right = args[_DOTS[name] : _DOTS[name] + 2]
            self._note("dot", left, right, result, left.shape[-1])
        elif name == "convolution":
            data, weight = args[:2]
            self._note("convolution", data, weight, result, _kernel(weight, transposed=args[6]))
        elif name == "convolution_backward":
            grad, data, weight = args[:3]
            inner = _kernel(weight, transposed=args[7])
            for gradient, other in zip(result[:2], (weight, data), strict=True):
                if gradient is not None:
                    self._note("convolution", grad, other, gradient, inner, of=grad)
        return result

    def _note(
        self, name: str, left: Tensor, right: Tensor, result: Tensor, inner: int, of: Tensor | None = None
    ) -> None:
        row = Operator(
            name=name,
            operands=tuple(str(x.dtype).removeprefix("torch.") for x in (left, right)),
            result=str(result.dtype).removeprefix("torch."),
            shapes=(tuple(left.shape), tuple(right.shape)),
            result_shape=tuple(result.shape),
            where="",
            multiplications=math.prod((result if of is None else of).shape) * inner,
            count=1,
        )
        self._rows.append(row)


def _kernel(weight: Tensor, transposed: bool) -> int:
    """Returns the multiplications that an element of a convolution's result takes."""
    return math.prod(weight.shape[2:]) * weight.shape[0] if transposed else math.prod(weight.shape[1:])

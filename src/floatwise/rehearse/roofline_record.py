# SPDX-License-Identifier: Apache-2.0
"""Records the operators of a training step with their arithmetic and memory traffic, of real or fake tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from floatwise.rehearse.roofline import Operator

__all__ = ["OperatorRecorder"]

_aten = torch.ops.aten
#: Operators that touch no element.
_FREE = frozenset({"_unsafe_view", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty_strided"})
#: Operators that read of their first operand no more than they return.
_LOOKUPS = frozenset({"embedding", "gather", "index", "index_select"})


class OperatorRecorder(TorchDispatchMode):
    """Records operators while it is open as a context.

    FLOPs of products are those of `torch.utils.flop_counter`; other operators count one for each element of their
    largest operand or result.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: Counter[tuple[str, str, bool, int, int]] = Counter()

    @property
    def operators(self) -> tuple[Operator, ...]:
        """What was recorded, in the order of the first calls."""
        return tuple(Operator(*key, calls=calls) for key, calls in self._calls.items())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator and notes it."""
        result = func(*args, **(kwargs or {}))
        self.seen(func, args, kwargs or {}, result)
        return result

    def seen(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Notes an operator that ran."""
        name = func._schema.name.removeprefix("aten::")
        if func.namespace == "aten" and not func.is_view and name not in _FREE:
            self._note(func, name, args, kwargs, result)

    def _note(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        operands = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, Tensor)]
        results = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        if not operands and not results:
            return
        count = _flop_formula(func._overloadpacket)
        if count is not None:
            flops, format = int(count(*args, **kwargs, out_val=result)), _format(operands[:2])
        else:
            flops, format = max(map(_elements, (*operands, *results))), _format(operands or results)
        self._calls[f"aten.{name}", format, count is not None, flops, _traffic(func, name, operands, results)] += 1


def _traffic(func: Any, name: str, operands: list[Tensor], results: list[Tensor]) -> int:
    """Returns the bytes read and written; what is written in place counts as both."""
    read = [_size(t) for t in operands]
    written = [_size(t) for t in results]
    if name in _LOOKUPS and read and written:
        read[0] = min(read[0], written[0])
    if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments) and not written:
        written = read[:1]  # lists of tensors that are updated in place: as much as the largest part of the operands
    return sum(read) + sum(written)


def _elements(tensor: Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return tensor._values().numel()
    return tensor.numel()


def _size(tensor: Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return sum(part.numel() * part.element_size() for part in (tensor._values(), tensor._indices()))
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    # An expanded tensor has more elements than memory.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _format(tensors: list[Tensor]) -> str:
    floats = [t.dtype for t in tensors if t.dtype.is_floating_point]
    widest = max(floats, key=lambda dtype: dtype.itemsize, default=None)
    return "" if widest is None else str(widest).removeprefix("torch.")


def _flop_formula(packet: Any) -> Callable[..., int] | None:
    return _FORMULAS.get(packet) or flop_registry.get(packet)


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, out_val: Any = None, **kwargs: Any
) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


def _recurrent(batch: Tensor, first: Tensor, second: Tensor, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return 2 * batch[..., 0].numel() * (first.numel() + second.numel())


def _recurrent_backward(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return 2 * _recurrent(*args[:3])


_OWN: Mapping[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
}
_FORMULAS = {getattr(_aten, name): formula for name, formula in _OWN.items() if hasattr(_aten, name)}

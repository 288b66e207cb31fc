# SPDX-License-Identifier: Apache-2.0
"""Which parameters have a master, and the float32 values of those parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from floatwise.errors import BadInputError
from floatwise.torch.masters.flat import cast, flat, is_dense, laid_out_as, local, replace_data, sharded_as
from floatwise.torch.masters.master import MODES, Master

__all__ = [
    "SIXTEEN_BIT",
    "Stored",
    "changes",
    "drop_master",
    "float32_value",
    "give_master",
    "set_float32_value",
    "stored_of",
]

SIXTEEN_BIT = (torch.bfloat16, torch.float16)
"""The formats that weights with masters can have."""

# Parameters by identity, forgotten with them. Not an attribute of theirs: that would go into pickled models.
_stored: WeakIdKeyDictionary = WeakIdKeyDictionary()
_changes = 0


class Stored:
    """A master, and the layout of the weight that it belongs to.

    Args:
      master: The master.
      part: The weight, as far as this process holds it.

    Attributes:
      master: The master.
      dtype: The format of the weight.
      in_checkpoints: True when the model's own `state_dict` gives the float32 value.
    """

    def __init__(self, master: Master, part: Tensor) -> None:
        self.master = master
        self.dtype = part.dtype
        self.in_checkpoints = False
        self._shape, self._stride = part.shape, part.stride()

    def weight(self, parameter: Tensor) -> Tensor:
        """Returns the stored weight in memory order, with the master beside it wherever it was moved to.

        Writing to it is not yet a change in autograd's eyes: count it with `increment_version`.

        Raises:
          BadInputError: The parameter was given a tensor of another shape, or one with gaps.
        """
        part, extra = local(parameter), self.master.extra
        if part.shape != self._shape or not is_dense(part):
            raise BadInputError(
                f"got a parameter of shape {tuple(part.shape)} and strides {part.stride()}, whose master weights are "
                f"for {tuple(self._shape)}; make MasterWeights anew after giving a parameter's .data another shape, "
                "and give it contiguous tensors"
            )
        if extra is not None and extra.device != part.device:
            self.master.extra = extra = extra.to(part.device)
        if extra is not None and part.stride() != self._stride:  # model.to(memory_format=...)
            moved = torch.empty_like(part, dtype=extra.dtype)
            self.master.extra = flat(moved.copy_(extra.as_strided(self._shape, self._stride)))
        self._stride = part.stride()
        return flat(part.data)


def stored_of(parameter: Tensor) -> Stored | None:
    """Returns the master of a parameter, with its bookkeeping; None for a parameter that has none."""
    found: Stored | None = _stored.get(parameter)
    # In another format it is a weight of another kind: for good, as after `model.float()`, or for a while, as where
    # averaged weights are swapped in through `.data`. The master waits.
    return found if found is None or parameter.dtype is found.dtype else None


def give_master(
    parameter: Tensor,
    mode: str,
    dtype: torch.dtype | None = None,
    convert: Callable[[Tensor, torch.dtype], object] | None = None,
) -> Stored:
    """Gives a parameter a master; the parameter stays the same object and keeps its gradient.

    Args:
      parameter: A parameter in float32 or 16 bits, to be stored in `dtype` from now on.
      mode: One of `MODES`.
      dtype: bfloat16 or float16; None for the format it has.
      convert: How to change the format of `parameter`; by default through `.data`.

    Raises:
      BadInputError: A mode that does not serve this format, a parameter of another format or without values, or one
        that has a master of another kind.
    """
    dtype = dtype or parameter.dtype
    found = stored_of(parameter)
    if found is not None:
        if (found.master.mode, found.dtype) != (mode, dtype):
            raise BadInputError(
                f"got mode {mode!r} and {_name(dtype)} for a parameter that has master weights of mode "
                f"{found.master.mode!r} in {_name(found.dtype)}; give all optimizers of a parameter the same"
            )
        return found
    kind = _kind(parameter, mode, dtype)
    with torch.no_grad():
        value = cast(local(parameter), torch.float32)
        if parameter.dtype is not dtype:
            (convert or _through_data)(parameter, dtype)
        if not is_dense(local(parameter)):
            replace_data(parameter, sharded_as(parameter, local(parameter).contiguous()))
        weight = local(parameter).data  # a graph made before this may still go backward
        stored = Stored(kind.beside(flat(weight)), weight)
        stored.master.set(flat(laid_out_as(weight, value)), flat(weight))
    _stored[parameter] = stored
    _note_change()
    return stored


def drop_master(parameter: Tensor) -> None:
    """Forgets the master of a parameter, which goes on as it is stored."""
    _stored.pop(parameter, None)
    _note_change()


def changes() -> int:
    """Returns how often parameters were given a master or lost it: what was looked up before is still so or not."""
    return _changes


def _note_change() -> None:
    global _changes
    _changes += 1


def float32_value(parameter: Tensor) -> Tensor:
    """Returns a new float32 tensor with the exact value of a parameter, sharded like it."""
    part, stored = local(parameter), stored_of(parameter)
    with torch.no_grad():
        if stored is None:
            return sharded_as(parameter, cast(part, torch.float32))
        value = torch.empty_like(part, dtype=torch.float32)
        weight = stored.weight(parameter)
        stored.master.read(flat(value), weight, 0, weight.numel())
    return sharded_as(parameter, value)


def set_float32_value(parameter: Tensor, value: Tensor) -> None:
    """Makes `value`, of the parameter's shape and sharded like it, its exact value.

    Raises:
      BadInputError: A value of another shape, or sharded in another way.
    """
    part, stored = local(parameter), stored_of(parameter)
    given = local(value)
    if given.shape != part.shape:
        raise BadInputError(
            f"got a value of shape {tuple(given.shape)} on this process for a parameter of shape {tuple(part.shape)}; "
            "give one that is sharded as the parameter is"
        )
    with torch.no_grad():
        if stored is None:
            part.copy_(given)
        else:
            weight = stored.weight(parameter)
            stored.master.set(flat(torch.empty_like(part, dtype=torch.float32).copy_(given)), weight)
            torch.autograd.graph.increment_version(part)


def _kind(parameter: Tensor, mode: str, dtype: torch.dtype) -> type[Master]:
    if is_lazy(parameter) or parameter.device.type == "meta":
        raise BadInputError("got a parameter without values; run one forward pass, or call model.to_empty(...), first")
    if parameter.dtype not in (*SIXTEEN_BIT, torch.float32):
        raise BadInputError(
            f"got a parameter in {_name(parameter.dtype)}; expected float32, which is stored in 16 bits from then on, "
            "or a parameter that is in 16 bits already"
        )
    if dtype not in SIXTEEN_BIT:
        raise BadInputError(f"got a parameter in {_name(dtype)} and no dtype; give dtype=torch.bfloat16 to store it in")
    kind = MODES.get(mode)
    if kind is None:
        raise BadInputError(f"got mode {mode!r}; expected one of {', '.join(MODES)}")
    if dtype not in kind.dtypes:
        raise BadInputError(
            f"got {_name(dtype)} weights with mode {mode!r}, which serves {' and '.join(map(_name, kind.dtypes))}; for "
            "float16 weights give mode 'float32'"
        )
    return kind


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _through_data(parameter: Tensor, dtype: torch.dtype) -> None:
    grad, parameter.grad = parameter.grad, None
    replace_data(parameter, cast(parameter.detach(), dtype))
    if grad is not None:
        parameter.grad = cast(grad, dtype) if not grad.is_sparse else grad.to(dtype)

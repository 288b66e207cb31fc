# SPDX-License-Identifier: Apache-2.0
"""Records the dtype of every result in a forward and a backward pass, and compares two such records."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Calls", "Comparison", "Operators", "Seen", "compare", "float_dtypes"]


@dataclass(frozen=True)
class Seen:
    """A call, and the dtypes of the floating-point tensors that it returned."""

    name: str
    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} → {', '.join(self.dtypes) or 'none'}"


def float_dtypes(result: Any) -> tuple[str, ...]:
    """Returns the dtypes of the floating-point tensors in a result."""
    return tuple(
        str(leaf.dtype).removeprefix("torch.")
        for leaf in tree_leaves(result)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    )


class Calls(TorchFunctionMode):
    """Records what Python code calls of PyTorch, with the dtypes of results and of the gradients that reach them.

    The same code makes the same calls on every device.
    """

    def __init__(self) -> None:
        super().__init__()
        self._results: list[Seen] = []
        self._gradients: dict[tuple[int, int], Seen] = {}

    @property
    def results(self) -> list[Seen]:
        """The calls, in order."""
        return self._results

    @property
    def gradients(self) -> list[Seen]:
        """The gradients of results, in the order of the calls."""
        return [seen for _, seen in sorted(self._gradients.items())]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs a function and notes what it returned."""
        result = func(*args, **(kwargs or {}))
        name = str(resolve_name(func) or getattr(func, "__name__", func))
        dtypes = float_dtypes(result)
        if dtypes and not name.endswith("__get__"):
            self._results.append(Seen(name, dtypes))
            if torch.is_grad_enabled():
                self._listen(len(self._results), name, result)
        return result

    def _listen(self, number: int, name: str, result: Any) -> None:
        for position, leaf in enumerate(tree_leaves(result)):
            if isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf:
                leaf.register_hook(partial(self._note, (number, position), name))

    def _note(self, key: tuple[int, int], name: str, gradient: Tensor) -> None:
        self._gradients.setdefault(key, Seen(f"gradient of {name}", float_dtypes(gradient)))


#: Views, copies and casts: either side may make them where the other need not. What is computed of them is compared.
_BESIDE = frozenset(
    "_to_copy _unsafe_view _reshape_alias alias clone copy_ detach empty_like fill_ lift_fresh zero_ zeros_like"
    " new_zeros new_empty new_empty_strided zeros empty empty_strided ones_like full full_like scalar_tensor".split()
)
#: One operator by the names that it has for devices, and how many of its results are of the operands' dtype.
_ONE_NAME = {
    "attention": ("_scaled_dot_product_", 1),
    "batch_norm": ("batch_norm", 1),
    "recurrent": ("_rnn", 1),
}


class Operators(TorchDispatchMode):
    """Records the operators that run below autocast and autograd, the backward pass's among them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results: list[Seen] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and notes what it returned."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        dtypes = float_dtypes(result)
        if func.namespace == "aten" and dtypes and not func.is_view and name not in _BESIDE:
            for one, (part, kept) in _ONE_NAME.items():
                if part in name:
                    backward = name.endswith("_backward")
                    name, dtypes = (
                        one + "_backward" * backward,
                        dtypes[: 3 if backward and one == "attention" else kept],
                    )
            self.results.append(Seen(name, dtypes))
        return result


@dataclass
class Comparison:
    """Two records side by side.

    Attributes:
      agreeing: Calls with the same dtypes on both sides.
      disagreements: Pairs of calls with different dtypes, as text.
      only_rehearsed: Names of calls that the real side does not make.
      only_real: Names of calls that the rehearsal does not make.
    """

    agreeing: int = 0
    disagreements: list[str] = field(default_factory=list)
    only_rehearsed: list[str] = field(default_factory=list)
    only_real: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Calls that both sides make."""
        return self.agreeing + len(self.disagreements)

    def note(self, agrees: bool, otherwise: str) -> None:
        """Notes a call that both sides make.

        Args:
          agrees: Whether the dtypes are the same.
          otherwise: What they are, where they are not.
        """
        self.agreeing += agrees
        if not agrees:
            self.disagreements.append(otherwise)


def compare(rehearsed: Sequence[Seen], real: Sequence[Seen]) -> Comparison:
    """Compares the dtypes of calls that both records have.

    What is the same on both sides is aligned first; between, calls of the same name in the same place are compared.
    """
    found = Comparison()
    for i1, i2, j1, j2, same in _blocks(rehearsed, real):
        if same:
            found.agreeing += i2 - i1
            continue
        left, right = rehearsed[i1:i2], real[j1:j2]
        for k1, k2, m1, m2, named_alike in _blocks([s.name for s in left], [s.name for s in right]):
            if named_alike:
                pairs = zip(left[k1:k2], right[m1:m2], strict=True)
                found.disagreements += [f"rehearsed {one}, real {other}" for one, other in pairs]
            else:
                found.only_rehearsed += [seen.name for seen in left[k1:k2]]
                found.only_real += [seen.name for seen in right[m1:m2]]
    return found


def _blocks(left: Sequence[Hashable], right: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int, bool]]:
    for kind, *places in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        i1, i2, j1, j2 = places
        yield i1, i2, j1, j2, kind == "equal"

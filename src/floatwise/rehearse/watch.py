# SPDX-License-Identifier: Apache-2.0
"""The first operator that makes infinities or NaN of finite numbers, in the forward or in the backward pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from floatwise.rehearse.module_trace import ModuleTrace
from floatwise.rehearse.nonfinite import NonFinite, OperatorSite, Phase

__all__ = ["OperatorWatch"]

#: Operators whose result holds whatever the memory held before.
_UNINITIALISED = ("empty", "new_empty")


class OperatorWatch(TorchDispatchMode):
    """Sees every operator while it is open as a context manager.

    A `-inf` alone is legal, as in attention masks, unless its step ends with a loss or gradients that are not finite.

    Args:
      trace: Tells which module is running.
      known: Places where a float32 run makes infinities or NaN, too.
      survey: Whether to remember every operator's largest result and its FLOPs.

    Attributes:
      sites: Every place that made an infinity or NaN.
      amax: Largest magnitude of each operator's result, when surveyed.
      flops: FLOPs of matrix products and convolutions by module, forward and backward, when surveyed.
      updating: True once the step's backward pass is over.
    """

    def __init__(self, trace: ModuleTrace, known: frozenset[OperatorSite] = frozenset(), survey: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace
        self.known = known
        self.sites: set[OperatorSite] = set()
        self.amax: dict[OperatorSite, float] = {}
        self.flops: Counter[str] = Counter()
        self._survey = survey
        self._step = 0
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        """Counts operators from zero again, and forgets what it found."""
        self.updating = False
        self._step = step
        self._position = 0
        self._calls: Counter[tuple[str, str, Phase]] = Counter()
        self._owner: dict[int, str] = {}  # module by the number of its autograd nodes
        self._hard: NonFinite | None = None
        self._soft: NonFinite | None = None
        self._awaited: dict[int, NonFinite] = {}

    def forget_backward(self) -> None:
        """Forgets what the backward pass made: it is done again with a smaller loss scale."""
        self._hard = self._hard if self._hard is not None and self._hard.phase == "forward" else None
        self._soft = self._soft if self._soft is not None and self._soft.phase == "forward" else None
        for key in [key for key in self._calls if key[2] == "backward"]:
            del self._calls[key]

    def first(self, step_is_finite: bool) -> NonFinite | None:
        """Returns the first operator of this step that made infinities or NaN.

        Args:
          step_is_finite: Whether the step's loss and gradients are; a `-inf` that did no harm is then no fault.
        """
        found = [f for f in (self._hard, None if step_is_finite else self._soft) if f is not None]
        return min(found, key=lambda f: f.position, default=None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Before the call: an operator may overwrite its own input.
        written = _tensors_written(func, args) if self._hard is None else ()
        output = func(*args, **kwargs)
        if not self.trace.paused and not _is_view(func):
            self._look(func, args, kwargs, output, written)
        return output

    def _look(self, func: Any, args: Any, kwargs: Any, output: Any, written: tuple[Tensor, ...]) -> None:
        name = func._overloadpacket.__name__
        in_backward = torch._C._current_graph_task_id() != -1
        phase: Phase = "backward" if in_backward else "update" if self.updating else "forward"
        module = self._module(phase)
        call = self._calls[module, name, phase]
        self._calls[module, name, phase] += 1
        self._position += 1
        site = OperatorSite(module, name, phase, call)
        if self._survey:
            self._count(func, args, kwargs, output, site)
        if self._awaited:
            self._follow(name, args)
        if (self._hard is None or self._survey) and not name.startswith(_UNINITIALISED):
            self._inspect(site, args, kwargs, output, written)

    def _module(self, phase: Phase) -> str:
        if phase != "backward":
            # The node of the operator that is running is the last one made.
            self._owner.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.trace.path)
            return self.trace.path
        node = torch._C._current_autograd_node()
        return "" if node is None else self._owner.get(node._sequence_nr(), "")

    def _count(self, func: Any, args: Any, kwargs: Any, output: Any, site: OperatorSite) -> None:
        counter = flop_registry.get(func._overloadpacket)
        if counter is not None:
            self.flops[site.module] += counter(*args, **kwargs, out_val=output)
        amax = [_ends(tensor) for tensor in _floats(output)]
        if amax:
            self.amax[site] = max(max(abs(low), abs(high)) for low, high in amax)

    def _inspect(self, site: OperatorSite, args: Any, kwargs: Any, output: Any, written: tuple[Tensor, ...]) -> None:
        worst, tensor = 0, None
        for candidate in _floats(output):
            badness = _badness(candidate)
            if badness > worst:
                worst, tensor = badness, candidate
        if tensor is None or site in self.known:
            return
        inputs = [*_floats((args, kwargs), numbers=True)]
        untouched = [value for value in inputs if not any(value is w for w in written)]
        before = max((_badness(value) for value in untouched), default=0)
        if before >= worst or (before and site.operator in ("_to_copy", "clone", "where", "masked_fill")):
            return
        self.sites.add(site)
        found = NonFinite(
            *site[:2],
            call=site.call,
            phase=site.phase,
            step=self._step,
            position=self._position,
            result=_result(tensor, worst),
            format=str(tensor.dtype).removeprefix("torch."),
            input_amax=max((_amax(value) for value in untouched), default=0.0),
        )
        if worst == _MINUS_INFINITY:
            self._soft = self._soft or found
        elif self._hard is None:
            self._hard = found
        if found in (self._soft, self._hard):
            self._awaited[tensor.data_ptr()] = found

    def _follow(self, name: str, args: Any) -> None:
        """Notes what an operator does with the result that was found last."""
        for tensor in _floats(args):
            found = self._awaited.pop(tensor.data_ptr(), None)
            if found is None:
                continue
            number = args[1] if len(args) > 1 and isinstance(args[1], (int, float)) else None
            if name.rstrip("_") in ("div", "mul") and number:
                factor = 1.0 / number if name.startswith("div") else float(number)
                values = {**asdict(found), "follower": name.rstrip("_"), "factor": factor}
                self._hard, self._soft = (NonFinite(**values) if f is found else f for f in (self._hard, self._soft))
            return


_FINITE, _MINUS_INFINITY, _BAD = 0, 1, 2


def _badness(value: Tensor | float) -> int:
    low, high = _ends(value)
    if math.isnan(low) or math.isnan(high) or high == math.inf:
        return _BAD
    return _MINUS_INFINITY if low == -math.inf else _FINITE


def _ends(value: Tensor | float) -> tuple[float, float]:
    if not isinstance(value, Tensor):
        return value, value
    low, high = torch.aminmax(value)
    return float(low), float(high)


def _amax(value: Tensor | float) -> float:
    low, high = _ends(value)
    return max(abs(low), abs(high))


def _result(tensor: Tensor, badness: int) -> Literal["nan", "inf", "-inf"]:
    if badness == _MINUS_INFINITY:
        return "-inf"
    return "inf" if bool((tensor == math.inf).any()) else "nan"


def _floats(value: Any, numbers: bool = False) -> Iterator[Any]:
    """Yields the tensors of a floating format in an operator's arguments or result; with `numbers`, Python's floats."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel() and value.layout is torch.strided and not value.is_meta:
            yield value
    elif isinstance(value, float):
        if numbers:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _floats(item, numbers)
    elif isinstance(value, dict):
        yield from _floats(tuple(value.values()), numbers)


def _is_view(func: Any) -> bool:
    if func is torch.ops.aten._unsafe_view.default:
        return True  # one that autograd is told nothing of
    aliases = [r.alias_info for r in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _tensors_written(func: Any, args: Any) -> tuple[Tensor, ...]:
    """Returns the arguments whose values are gone, or worthless, once the operator has run."""
    formal = func._schema.arguments
    pairs = zip(formal, args, strict=False)
    return tuple(a for f, a in pairs if f.alias_info is not None and f.alias_info.is_write and isinstance(a, Tensor))

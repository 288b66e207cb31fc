# SPDX-License-Identifier: Apache-2.0
"""Which values occur in float32 training: an observer on the tap, per site and role."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from floatwise.formats import get_format
from floatwise.probe.flops import matrix_shape
from floatwise.probe.recording import Site
from floatwise.probe.sources import SourceTracer
from floatwise.probe.updates import UpdateProbe
from floatwise.stats.torch import SAMPLED_ELEMENTS, SummaryCollector
from floatwise.tap.backward import leaves_of
from floatwise.tap.events import Observer
from floatwise.tap.operators import ARITHMETIC_OPERATORS, MATRIX_OPERATORS
from floatwise.tap.tensors import floating_tensors, values_are_real

__all__ = ["Probe"]

_MATRIX_NAMES = frozenset(MATRIX_OPERATORS.values())
_ARITHMETIC_NAMES = frozenset(ARITHMETIC_OPERATORS.values())
#: Times one site and role is looked at per iteration; an unrolled loop, or an evaluation with gradients enabled,
#: calls a module thousands of times.
_LOOKS_PER_ITERATION = 8


class Probe(Observer):
    """Records exponents, amax and update losses while a script trains in float32.

    Roles: `weight` and `update` (parameters, at each optimizer step), `weight_grad` (each backward pass, before
    accumulation), `input`, `output` and `grad_output` (sites).

    Args:
      full: Look at every element instead of 16 Ki per tensor.
      name_of: Returns the path of a module.
    """

    inspects_values = True

    def __init__(self, name_of: Callable[[nn.Module], str], full: bool = False) -> None:
        self.collector: SummaryCollector[tuple[str, str]] = SummaryCollector(None if full else SAMPLED_ELEMENTS)
        self.updates = UpdateProbe(self.collector)
        self.active = True
        self._tracer = SourceTracer()
        self._iterations = 0
        self._name_of = name_of
        self._sites: dict[str, dict[str, Any]] = {}
        self._calls: Counter[str] = Counter()
        self._looks: Counter[tuple[str, str]] = Counter()
        self._by_operator: set[str] = set()
        self._in_forward: set[str] = set()
        self._parameters: dict[int, tuple[str, Tensor]] = {}
        self._awaited: dict[int, tuple[weakref.ref[Tensor], list[str]]] = {}
        self._models_seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    # -- forward ------------------------------------------------------------------------------------------------

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.active and torch.is_grad_enabled() and values_are_real() and root not in self._models_seen:
            self._name_parameters(root)
        return args, kwargs

    @override
    def operator_called(
        self, site: str, operator: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if not self.active or self._is_computed_again(site):
            return
        if operator in _ARITHMETIC_NAMES:
            self._look_at_arithmetic(site, operator, args, kwargs, output)
            return
        self._note_site(site, operator, args, output)
        operands = [t for t in floating_tensors(args) if t.ndim and id(t) not in self._parameters]
        for operand in operands:
            self._look(site, "input", operand)
        if operator in _MATRIX_NAMES:
            self._by_operator.add(site)
            self._trace(site, operands, output)
            self._look_at_output(site, output)

    @override
    def module_called(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if not self.active or path in self._by_operator or self._is_computed_again(path):
            return
        self._sites.setdefault(path, {"kind": type(module).__name__, "matrix": False})
        self._calls[path] += 1
        self._look_at_output(path, output)

    # -- backward and update ------------------------------------------------------------------------------------

    @override
    def backward_starts(self, roots: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.active and not self._parameters:
            for number, leaf in enumerate(leaves_of(roots)):
                self._watch_parameter(_name_in_script(leaf) or f"parameter_{number}", leaf)
        return roots

    @override
    def step_starts(self, optimizer: torch.optim.Optimizer | None) -> None:
        if self.active:
            stepped = None if optimizer is None else {id(p) for g in optimizer.param_groups for p in g["params"]}
            mine = [(n, p) for i, (n, p) in self._parameters.items() if stepped is None or i in stepped]
            for name, parameter in mine:
                self.collector.add((name, "weight"), parameter)
            if optimizer is not None:
                self.updates.before(mine)

    @override
    def step_ended(self, optimizer: torch.optim.Optimizer | None) -> None:
        if self.active and optimizer is not None:
            self.updates.after()

    def end_iteration(self) -> None:
        """Works off what the iteration left."""
        self.collector.flush()
        self._looks.clear()
        self._in_forward.clear()
        self._awaited.clear()
        self._tracer.forget()
        self._iterations += 1

    def sites(self, iterations: int) -> tuple[Site, ...]:
        """Returns every site seen over so many iterations, in the order of first use."""
        rows = []
        for path, row in self._sites.items():
            flops = row.get("flops", 0) // max(iterations, 1)
            known = {"path": path, "parent": _parent(path), "calls": self._calls[path], "flops": flops}
            rows.append(Site(**{**row, **known}))
        return tuple(rows)

    @property
    def parameters(self) -> list[tuple[str, Tensor]]:
        """The trainable parameters seen, by path."""
        return list(self._parameters.values())

    # -- details ------------------------------------------------------------------------------------------------

    def _is_computed_again(self, site: str) -> bool:
        """True in a backward pass for what the forward has shown: checkpointing needs its inner values once more."""
        if torch._C._current_graph_task_id() == -1:
            self._in_forward.add(site)
            return False
        return site in self._in_forward

    def _note_site(self, site: str, operator: str, args: Any, output: Any) -> None:
        matrix = operator in _MATRIX_NAMES
        row = self._sites.setdefault(site, {"kind": operator, "matrix": matrix})
        self._calls[site] += 1
        if matrix and (shape := matrix_shape(operator, args, output)) is not None:
            row.update(m=shape.m, n=shape.n, k=shape.k, flops=row.get("flops", 0) + shape.flops)
        known = {self._parameters[id(t)][0] for t in floating_tensors(args) if id(t) in self._parameters}
        row["weights"] = tuple(sorted(known.union(row.get("weights", ()))))

    def _look_at_arithmetic(self, site: str, operator: str, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if not self._iterations and site not in self._sites and isinstance(output, Tensor):
            if any(t.ndim and not t.requires_grad for t in floating_tensors(args)):
                self._tracer.made_float32(output)  # with a float32 tensor of the script's: a mask, a table
            sources = self._tracer.sources_of(output)
            if sources:
                constant = _unholdable((*args, *kwargs.values()), operator)
                known = {"kind": operator, "matrix": False, "sources": tuple(sorted(sources)), "constant": constant}
                self._sites[site] = known
        if site in self._sites:  # what would be float32 under autocast is of no interest
            self._calls[site] += 1
            self._look(site, "output", output)

    def _trace(self, site: str, operands: Sequence[Tensor], output: Any) -> None:
        if self._iterations:
            return  # the graphs of later iterations look the same
        row = self._sites[site]
        found = frozenset().union(*(self._tracer.sources_of(t) for t in operands))
        row["sources"] = tuple(sorted(found.union(row.get("sources", ())) - {site}))
        self._tracer.made(site, floating_tensors(output))

    def _look_at_output(self, site: str, output: Any) -> None:
        for tensor in floating_tensors(output):
            self._look(site, "output", tensor)
            if tensor.requires_grad and not tensor.is_leaf:
                self._await_gradient(site, tensor)

    def _await_gradient(self, site: str, tensor: Tensor) -> None:
        # A container returns what its last part returned: one hook serves both.
        known = self._awaited.get(id(tensor))
        if known is not None and known[0]() is tensor:
            known[1].append(site)
            return
        sites = [site]
        self._awaited[id(tensor)] = (weakref.ref(tensor), sites)
        tensor.register_hook(lambda grad: self._gradient_came(sites, grad))

    def _gradient_came(self, sites: list[str], grad: Tensor) -> None:
        for site in sites:
            self._look(site, "grad_output", grad)

    def _look(self, site: str, role: str, tensor: Tensor) -> None:
        if self.active and values_are_real():
            looks = self._looks[site, role]
            if looks < _LOOKS_PER_ITERATION:
                self._looks[site, role] = looks + 1
                self.collector.add((site, role), tensor)

    def _name_parameters(self, root: nn.Module) -> None:
        if any(is_lazy(parameter) for parameter in root.parameters()):
            return  # its parameters are made in its first call
        self._models_seen.add(root)
        for module in root.modules():
            path = self._name_of(module)
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    self._watch_parameter(f"{path}.{name}" if path else name, parameter)

    def _watch_parameter(self, name: str, parameter: Tensor) -> None:
        if id(parameter) not in self._parameters and parameter.is_floating_point():
            self._parameters[id(parameter)] = (name, parameter)
            parameter.register_hook(lambda grad: self._look(name, "weight_grad", grad))


def _unholdable(operands: Sequence[Any], operator: str) -> float:
    """Returns a number among the operands that float16 makes infinite, or that it makes zero where it is added."""
    largest, vanishing = get_format("float16").max, get_format("float16").flush_threshold
    for number in operands:
        if isinstance(number, float) and number and not isinstance(number, bool) and math.isfinite(number):
            if abs(number) > largest or (operator in ("add", "sub") and abs(number) <= vanishing):
                return number
    return 0.0


def _parent(site: str) -> str:
    module, operator, _ = site.partition(":")
    return module if operator else module.rpartition(".")[0]


def _name_in_script(leaf: Tensor) -> str | None:
    import sys

    for name, value in list(vars(sys.modules["__main__"]).items()):
        if value is leaf:
            return name
    return None

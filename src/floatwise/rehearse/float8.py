# SPDX-License-Identifier: Apache-2.0
"""float8 training of linear layers, emulated on any machine."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatwise.errors import PlanError
from floatwise.formats import get_format
from floatwise.plan import Plan
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.rehearse.float8_cast import CastCounts, CastTally
from floatwise.rehearse.float8_eligible import LeftOut, ModuleFilter, why_not
from floatwise.rehearse.float8_product import Float8Rules, float8_linear
from floatwise.rehearse.float8_scaling import Float8Scaling, get_float8_scaling
from floatwise.torch.paths import module_paths
from floatwise.torch.policies import own_policies, policy_of

__all__ = ["Float8Linears"]

_ROLES = ("input", "weight", "grad_output")
# torchao 0.18, float8/config.py: e4m3fn but on AMD's MI300, which multiplies e4m3fnuz.
_FORWARD = get_format("float8_e4m3fn")


class Float8Linears:
    """Makes linear layers multiply as float8 training would, until `remove()`; also a context manager.

    Outputs, gradients of inputs and gradients of weights are those of torchao's `Float8Linear` with
    `Float8LinearConfig(emulate=True)`, bit for bit where both sum in one order. Everything but the products is as it
    was: open bfloat16 autocast around the model for what a plan's float8 recipes stand for. Casts are made anew for
    the backward, so optimizer steps, wrappers (DDP, torch.compile), activation checkpointing and copies of the model
    work as ever; second derivatives are refused by autograd. A copy keeps multiplying in float8 after `remove()`.

    Only instances are touched: each layer's own `forward` stands over that of its class. No torchao is needed.

    Args:
      model: The model, wrapped or not. Layers that another `Float8Linears` has converted are passed over.
      plan: A plan with float8 products, whose scaling, formats and islands are used; or a scaling or its name, for
        all linear layers and `float8_e4m3fn`.
      module_filter_fn: As torchao's: given a module and its path, False to leave a layer out. Called for linear
        layers that float8 could multiply; `floatwise.rehearse.float8_filters` has those of torchao and Accelerate.
      name_of: Gives the path of a module where `model` is one part of what the plan speaks of.

    Attributes:
      scaling: How operands are scaled.
      converted: Paths of the layers that multiply in float8, in the order of the model.
      left_out: The other linear layers and why, in the order of the model.

    Raises:
      PlanError: The plan has no float8 products.
      UnknownNameError: No scaling has the name.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan | Float8Scaling | str,
        *,
        module_filter_fn: ModuleFilter | None = None,
        name_of: Callable[[nn.Module], str] | None = None,
    ) -> None:
        paths = module_paths(model) if name_of is None else {name_of(module): module for module in model.modules()}
        self.scaling = get_float8_scaling(_scaling_of(plan) if isinstance(plan, Plan) else plan)
        self._layers: dict[str, _Float8Forward] = {}
        left_out = []
        formats = _formats(plan, paths) if isinstance(plan, Plan) else None
        for path, module, against in why_not(paths, self.scaling, module_filter_fn):
            if isinstance(vars(module).get("forward"), _Float8Forward):
                continue
            dtype = formats[path] if formats is not None else _FORWARD.name
            if dtype not in FLOAT8_FORMATS:
                against = LeftOut(path, "island", {"format": dtype})
            if against is not None:
                left_out.append(against)
                continue
            forward = get_format(dtype)
            rules = Float8Rules(
                self.scaling, forward, self.scaling.gradient_format(forward), {role: CastTally() for role in _ROLES}
            )
            self._layers[path] = _Float8Forward(module, rules)
        self.converted = tuple(self._layers)
        self.left_out = tuple(left_out)
        for layer in self._layers.values():
            layer.module.forward = layer  # type: ignore[method-assign]

    def counts(self) -> dict[tuple[str, str], CastCounts]:
        """Returns what casts have lost so far, by path and role (`input`, `weight`, `grad_output`).

        A forward that activation checkpointing repeats counts again.
        """
        return {
            (path, role): tally.counts()
            for path, layer in self._layers.items()
            for role, tally in layer.rules.tallies.items()
        }

    def uneven_rows(self) -> dict[str, int]:
        """Returns layers whose inputs had a number of rows that hardware refuses, and the last such number.

        The gradient of the weight is a sum over rows, so these must be a multiple of the scaling's `multiple` too;
        torchao's `pad_inner_dim=True` fills up with zeros, which is what is computed here in any case. The sentence is
        `float8_texts.FLOAT8_REMARKS["float8_uneven_rows"]`.
        """
        return {path: layer.uneven_rows for path, layer in self._layers.items() if layer.uneven_rows}

    def to_json(self) -> dict[str, Any]:
        """Returns what was converted, what was not and why, and what casts have lost, as plain data."""
        return {
            "scaling": self.scaling.name,
            "multiple": self.scaling.multiple,
            "converted": list(self.converted),
            "left_out": [layer.to_json() for layer in self.left_out],
            "uneven_rows": self.uneven_rows(),
            "counts": [
                {"path": path, "role": role, **counts.to_json()} for (path, role), counts in self.counts().items()
            ],
        }

    def remove(self) -> None:
        """Makes the layers multiply as before; what was counted stays. Removing twice is harmless."""
        for layer in self._layers.values():
            if vars(layer.module).get("forward") is layer:
                del layer.module.forward

    def __enter__(self) -> Float8Linears:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class _Float8Forward:
    """The forward of one layer. A class and not a closure, so that a model can still be copied and pickled."""

    def __init__(self, module: nn.Linear, rules: Float8Rules) -> None:
        self.module = module
        self.rules = rules
        self.uneven_rows = 0

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it counts as it goes, which no graph may
    def __call__(self, input: Tensor) -> Tensor:
        module = self.module
        if not input.numel() or torch._C._get_tracing_state() is not None:  # a trace records what the script computes
            return F.linear(input, module.weight, module.bias)
        rows, scaling = input.numel() // input.shape[-1], self.rules.scaling
        summed = torch.is_grad_enabled() and module.weight.requires_grad and scaling.rounded_weight_gradient
        if summed and rows % scaling.multiple:
            self.uneven_rows = rows
        return float8_linear(input, module.weight, module.bias, self.rules)


def _scaling_of(plan: Plan) -> str:
    if plan.scaling is None:
        raise PlanError(
            f"got a plan of recipe {plan.recipe!r}, which multiplies nothing in float8; use 'fp8-tensorwise'"
        )
    return plan.scaling


def _formats(plan: Plan, paths: dict[str, nn.Module]) -> dict[str, str]:
    """Returns the compute format of every module; one with several paths is in float32 when any of them says so."""
    policies = own_policies(plan, paths)
    found: dict[str, str] = {}
    by_module: dict[int, list[str]] = {}
    for path, module in paths.items():
        found[path] = policy_of(path, plan, paths, policies).compute_dtype
        by_module.setdefault(id(module), []).append(found[path])
    return {
        path: next((f for f in by_module[id(m)] if f not in FLOAT8_FORMATS), found[path]) for path, m in paths.items()
    }

# SPDX-License-Identifier: Apache-2.0
"""Which linear layers of a model train in float8, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedParameter

from floatwise.language import Text
from floatwise.rehearse.float8_scaling import Float8Scaling

__all__ = ["LEFT_OUT", "LeftOut", "ModuleFilter", "why_not"]

#: As torchao's `module_filter_fn`: given a module and its path, True to train it in float8.
ModuleFilter = Callable[[nn.Module, str], bool]

LEFT_OUT: Mapping[str, Text] = MappingProxyType(
    {
        "island": Text("the plan computes it in {format}", "计划规定其以 {format} 计算"),
        "filter": Text("the module filter leaves it out", "模块筛选函数将其排除"),
        "dimensions": Text(
            "{inputs} inputs and {outputs} outputs: float8 products take multiples of {multiple}",
            "输入 {inputs} 维、输出 {outputs} 维：float8 矩阵乘要求维度为 {multiple} 的倍数",
        ),
        "tied": Text("its weight is also that of {other}", "其权重与 {other} 共享"),
        "own_forward": Text("{class_name} computes in a forward of its own", "{class_name} 使用自定义的 forward"),
        "not_called": Text("attention uses its weight without calling it", "注意力直接使用其权重，并不调用该层"),
        "computed_weight": Text("its weight is computed from other parameters", "其权重由其他参数计算得出"),
        "lazy": Text("it has no weight before its first call", "首次调用之前尚无权重"),
        "dtype": Text("its weight is stored in {format}", "其权重以 {format} 存储"),
    }
)
"""Why a linear layer is left out, by code; placeholders are the keys of `LeftOut.data`."""

_STORED_IN = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class LeftOut:
    """A linear layer that does not train in float8.

    Attributes:
      path: Its path in the model, without what wrappers add.
      code: Why: a key of `LEFT_OUT`.
      data: What fills the sentence of that code.
    """

    path: str
    code: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return LEFT_OUT[self.code].format(**self.data)

    def to_json(self) -> dict[str, Any]:
        """Returns path, code and data as plain data."""
        return {"path": self.path, "code": self.code, "data": dict(self.data)}


def why_not(
    paths: Mapping[str, nn.Module], scaling: Float8Scaling, module_filter_fn: ModuleFilter | None
) -> Iterator[tuple[str, nn.Linear, LeftOut | None]]:
    """Yields each linear layer once, by its first path, and what speaks against float8 there, if anything.

    Dimensions: `torch._scaled_mm` and TransformerEngine refuse others when called; torchao's `_auto_filter_for_recipe`
    and Accelerate 1.15's `convert_model` pass over them beforehand, as this does. torchao itself would convert what has
    a forward of its own, and lose it.

    Args:
      paths: The modules of the model by path.
      scaling: How operands are scaled.
      module_filter_fn: As in torchao, called for each linear layer; layers for which it is False are left out.
    """
    owners: dict[int, str] = {}
    seen: dict[int, str] = {}
    shared: dict[int, str] = {}
    for path, module in paths.items():
        if seen.setdefault(id(module), path) == path:
            for parameter in module._parameters.values():
                if parameter is not None and owners.setdefault(id(parameter), path) != path:
                    shared[id(module)] = owners[id(parameter)]
                    shared[id(paths[owners[id(parameter)]])] = path
    for path, module in paths.items():
        if isinstance(module, nn.Linear) and seen[id(module)] == path:
            code, data = _against(path, module, scaling, module_filter_fn, shared.get(id(module)))
            yield path, module, LeftOut(path, code, data) if code else None


def _against(
    path: str, module: nn.Linear, scaling: Float8Scaling, module_filter_fn: ModuleFilter | None, other: str | None
) -> tuple[str, dict[str, Any]]:
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "not_called", {}
    if type(module).forward is not nn.Linear.forward or "forward" in vars(module):
        return "own_forward", {"class_name": type(module).__name__}
    weight = module._parameters.get("weight")
    if weight is None:
        return "computed_weight", {}
    if isinstance(weight, UninitializedParameter):
        return "lazy", {}
    if weight.dtype not in _STORED_IN:
        return "dtype", {"format": str(weight.dtype).removeprefix("torch.")}
    if module.in_features % scaling.multiple or module.out_features % scaling.multiple:
        sizes = {"inputs": module.in_features, "outputs": module.out_features}
        return "dimensions", {**sizes, "multiple": scaling.multiple}
    if other is not None:
        return "tied", {"other": other or "(root)"}
    if module_filter_fn is not None and not module_filter_fn(module, path):
        return "filter", {}
    return "", {}

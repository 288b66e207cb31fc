# SPDX-License-Identifier: Apache-2.0
"""The module filters that libraries come with, to be given as `module_filter_fn`."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from floatwise.errors import BadInputError
from floatwise.rehearse.float8_eligible import ModuleFilter
from floatwise.torch.paths import module_paths

__all__ = ["inner_linears", "large_linears"]


def large_linears(scaling: str, without: Iterable[str] = ()) -> ModuleFilter:
    """Returns torchao's automatic filter: layers that float8 makes faster on an H100.

    Args:
      scaling: `tensorwise` or `rowwise`, whose kernels were measured.
      without: Layers are left out whose path contains one of these.

    Raises:
      BadInputError: There are no measurements for that scaling.

    Source: torchao 0.18, float8/float8_linear_utils.py, `_auto_filter_for_recipe`.
    """
    if scaling not in ("tensorwise", "rowwise"):
        raise BadInputError(f"got scaling={scaling!r}; torchao has measured 'tensorwise' and 'rowwise' only")
    excluded = tuple(without)

    def is_large(module: nn.Module, path: str) -> bool:
        if not isinstance(module, nn.Linear) or any(part in path for part in excluded):
            return False
        inputs, outputs = module.in_features, module.out_features
        if scaling == "tensorwise":
            return inputs > 4096 or outputs > 1024
        return outputs > 2048 and inputs > 1024 and (outputs > 4096 or inputs > 2048)

    return is_large


def inner_linears(model: nn.Module) -> ModuleFilter:
    """Returns Accelerate's filter: every linear layer but the first and the last, for stability.

    Source: Accelerate 1.15, utils/ao.py, `filter_first_and_last_linear_layers`.
    """
    paths = [path for path, module in module_paths(model).items() if isinstance(module, nn.Linear)]
    ends = {*paths[:1], *paths[-1:]}
    return lambda module, path: path not in ends

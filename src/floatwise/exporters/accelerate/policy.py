# SPDX-License-Identifier: Apache-2.0
"""The mixed_precision_policy of Accelerate's FSDP plugin, in each of the ways it can be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.exporters.settings import Call, Dotted, SettingsProblems
from floatwise.exporters.torch_calls import dtype_of
from floatwise.plan.problems import Problem

__all__ = ["policy_of"]

_LOC = ("FullyShardedDataParallelPlugin", "mixed_precision_policy")
# accelerate/utils/dataclasses.py `set_mixed_precision`, 1.15.0.
_WORDS = {"fp8": "bfloat16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_CLASSES = {1: "MixedPrecision", 2: "MixedPrecisionPolicy"}


def policy_of(plugin: Call, fsdp: int) -> Mapping[str, str] | None:
    """Returns the formats of the plugin's policy by its own keys; None where Accelerate makes the policy itself.

    Args:
      plugin: The call of FullyShardedDataParallelPlugin.
      fsdp: Its version of FSDP, 1 or 2.

    Raises:
      SettingsProblems: Accelerate refuses the policy.
    """
    given = plugin.kwargs.get("mixed_precision_policy")
    keys = _keys(fsdp)
    if isinstance(given, Call):
        return _of_call(given, fsdp)
    if isinstance(given, Mapping):
        return _of_table(given, fsdp)
    if isinstance(given, str) and not isinstance(given, Dotted):
        if given not in _WORDS:
            raise _problem(f'got "{given}", expected {" or ".join(_WORDS)}')
        return dict.fromkeys(keys, _WORDS[given])
    return None


def _keys(fsdp: int) -> tuple[str, str, str]:
    return ("param_dtype", "reduce_dtype", "buffer_dtype" if fsdp == 1 else "output_dtype")


def _of_table(given: Mapping[Any, Any], fsdp: int) -> Mapping[str, str]:
    keys = _keys(fsdp)
    missing = [key for key in keys if key not in given]
    if missing:
        raise _problem(
            f"got a policy without {' and '.join(missing)}; with FSDP{fsdp} Accelerate takes a table only with all of "
            f"{', '.join(keys)}, and else ends with ValueError: Invalid mixed precision policy"
        )
    formats: dict[str, str] = {}
    for key, value in given.items():
        if key not in keys:
            raise _problem(f"got the key {key!r} in the policy, which FSDP{fsdp} does not have: {', '.join(keys)}")
        dtype = dtype_of(value)
        if dtype is None or dtype not in _WORDS.values():
            raise _problem(f"got {key} = {value}, expected torch.float32, torch.float16 or torch.bfloat16")
        formats[key] = dtype
    return formats


def _of_call(given: Call, fsdp: int) -> Mapping[str, str] | None:
    if given.name in _CLASSES.values() and given.name != _CLASSES[fsdp]:
        raise _problem(
            f"got {given.name}, expected {_CLASSES[fsdp]} with fsdp_version={fsdp}; Accelerate else ends with "
            "ValueError: mixed_precision_policy must be an instance of torch.distributed.fsdp." + _CLASSES[fsdp]
        )
    inner = dtype_of(given.kwargs.get("param_dtype")) or "float32"
    formats = {"param_dtype": inner}
    for key in _keys(fsdp)[1:]:
        # Without a format of their own sums have that of the computation, outputs and buffers stay as they are.
        formats[key] = dtype_of(given.kwargs.get(key)) or ("float32" if key == "buffer_dtype" else inner)
    return formats


def _problem(text: str) -> SettingsProblems:
    return SettingsProblems([Problem(_LOC, text)])

# SPDX-License-Identifier: Apache-2.0
"""Flags that Megatron-LM refuses together: its own assertions, told before the launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from floatwise.exporters.megatron.knobs import KNOBS
from floatwise.plan.problems import Problem

__all__ = ["contradictions"]

# Flags of Megatron whose names are near to one with a row, from its parser, 0.12.0 to 0.20.
_OTHER_FLAGS = frozenset({"fp4_param_gather", "fp4_recipe", "no_fp8_wgrad", "disable_fp8_wgrad", "fp8_output_proj"})

_Values = Mapping[str, Any]
_STATES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


def _sharded(v: _Values) -> bool:
    return any(v.get(name) for name in ("use_distributed_optimizer", "use_torch_fsdp2", "use_megatron_fsdp"))


_BOTH = "got --bf16 and --fp16; keep one of them, or, where the script chooses, read a file with the flags of one run"

_ROWS: tuple[tuple[str, Callable[[_Values], Any], str], ...] = (
    ("bf16", lambda v: v.get("fp16") and v.get("bf16"), _BOTH),
    (
        "main_grads_dtype",
        lambda v: v.get("accumulate_allreduce_grads_in_fp32") and v.get("main_grads_dtype") == "bf16",
        "got bf16 with --accumulate-allreduce-grads-in-fp32; write fp32, or delete that flag",
    ),
    (
        "use_precision_aware_optimizer",
        lambda v: (
            v.get("use_precision_aware_optimizer")
            and not (v.get("use_distributed_optimizer") or v.get("use_megatron_fsdp"))
        ),
        "needs --use-distributed-optimizer; add it, or delete this flag",
    ),
    (
        "use_precision_aware_optimizer",
        lambda v: v.get("use_precision_aware_optimizer") and v.get("optimizer", "adam") != "adam",
        "works with --optimizer adam only",
    ),
    (
        "fp8_param_gather",
        lambda v: v.get("fp8_param_gather") and not _sharded(v),
        "needs --use-distributed-optimizer, --use-torch-fsdp2 or --use-megatron-fsdp; add one of them",
    ),
    (
        "fp4_format",
        lambda v: v.get("fp4_format") and v.get("fp8_format"),
        "got --fp4-format and --fp8-format; keep one of them",
    ),
    (
        "fp4_format",
        lambda v: v.get("fp4_format") and not v.get("fp8_format"),
        "no plan stands for 4-bit operands; delete this flag to compare the rest",
    ),
    (
        "fp8_recipe",
        lambda v: v.get("fp8_format") and v.get("fp8_recipe") == "custom",
        'no plan stands for "custom": what it does is known only when it runs',
    ),
    (
        "first_last_layers_bf16",
        lambda v: (
            v.get("fp8_format") and v.get("first_last_layers_bf16") and v.get("fp8_recipe", "delayed") == "delayed"
        ),
        "delayed scaling cannot leave layers out; write --fp8-recipe tensorwise",
    ),
    (
        "fp16_lm_cross_entropy",
        lambda v: v.get("fp16_lm_cross_entropy") and not v.get("fp16"),
        "needs --fp16; delete this flag",
    ),
    (
        "fp32_residual_connection",
        lambda v: v.get("fp32_residual_connection") and not (v.get("fp16") or v.get("bf16")),
        "needs --fp16 or --bf16; without them all is float32",
    ),
    (
        "use_torch_fsdp2",
        lambda v: v.get("use_torch_fsdp2") and v.get("fp16"),
        "does not work with --fp16; write --bf16",
    ),
    (
        "use_torch_fsdp2",
        lambda v: v.get("use_torch_fsdp2") and v.get("use_distributed_optimizer"),
        "does not work with --use-distributed-optimizer; keep one of them",
    ),
    (
        "min_loss_scale",
        lambda v: v.get("fp16") and v.get("min_loss_scale", 1.0) > v.get("initial_loss_scale", 2.0**32),
        "is above --initial-loss-scale; write a smaller one",
    ),
)


def contradictions(values: _Values, given: _Values) -> list[Problem]:
    """Returns what Megatron would refuse.

    Args:
      values: The flags with rows, in their types.
      given: All flags as read.
    """
    problems = [Problem((loc,), text) for loc, applies, text in _ROWS if applies(values)]
    problems += [
        Problem((name,), f"got {values[name]} without --use-precision-aware-optimizer; write fp32, or add that flag")
        for name in _STATES
        if values.get(name, "fp32") != "fp32" and not values.get("use_precision_aware_optimizer")
    ]
    return problems + [p for name in given if (p := _misspelled(name))]


def _misspelled(name: str) -> Problem | None:
    """Returns the problem of a flag that is nearly one with a row; flags of the user's own are passed over."""
    if name in KNOBS or name in _OTHER_FLAGS:
        return None
    # 0.85: no other flag of Megatron's is so near to one with a row.
    near = get_close_matches(name, KNOBS, n=1, cutoff=0.85)
    if not near:
        return None
    return Problem((name,), f"Megatron-LM knows no such flag; did you mean --{near[0].replace('_', '-')}?")

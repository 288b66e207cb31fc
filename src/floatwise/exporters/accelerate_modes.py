# SPDX-License-Identifier: Apache-2.0
"""Accelerate's precision modes as formats: what Trainer and Accelerate, which runs beneath it, really train in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from floatwise.exporters.nearest import NO_CEILING, NO_FLOOR
from floatwise.plan.model import LossScale, Reductions

__all__ = ["DEFAULT_SCALE", "MODES", "Formats", "deepspeed_formats", "mode_formats", "mode_of"]

MODES: Mapping[str, str] = MappingProxyType({"no": "float32", "fp16": "float16", "bf16": "bfloat16"})
"""What matrix products compute in, by `mixed_precision`; `fp8` beside these takes float8 for linear layers and
bfloat16 for all else. Source: accelerate/utils/modeling.py `get_mixed_precision_context_manager`, 1.15.0."""

DEFAULT_SCALE = LossScale(growth="fixed", floor=NO_FLOOR, ceiling=NO_CEILING)
"""GradScaler as Accelerate makes it without GradScalerKwargs: 65536, times 2 after 2000 good steps, halved by an
overflow. Source: accelerate/utils/dataclasses.py `GradScalerKwargs`, 1.15.0."""

# What DeepSpeed scales the loss with where its configuration says nothing (runtime/precision_config.py, 0.19.8).
_DEEPSPEED_SCALE = LossScale(growth_interval=1000, hysteresis=2, growth="fixed", floor=1.0, ceiling=NO_CEILING)


@dataclass(frozen=True)
class Formats:
    """Formats that a mode trains in, as `nearest_plan` takes them.

    Attributes:
      compute_dtype: Operand format of matrix products outside float8 layers.
      output_dtype: Format of the outermost outputs.
      reductions: Formats of sums and buffers.
      param_dtype: Format the weights are stored in.
      master: What keeps float32 accuracy beside 16-bit weights.
      loss_scale: What the loss is scaled with when nothing else is said; None for no scaling.
    """

    compute_dtype: str
    output_dtype: str = "float32"
    reductions: Reductions = field(default_factory=Reductions)
    param_dtype: str = "float32"
    master: Any = "none"
    loss_scale: LossScale | None = None

    def arguments(self) -> dict[str, Any]:
        """Returns the formats as arguments of `nearest_plan`."""
        return {
            "compute_dtype": self.compute_dtype,
            "output_dtype": self.output_dtype,
            "reductions": self.reductions,
            "param_dtype": self.param_dtype,
            "master": self.master,
            "loss_scale": self.loss_scale,
        }


def mode_of(compute_dtype: str) -> str:
    """Returns the value of `mixed_precision` for a plan's compute format."""
    return next((mode for mode, dtype in MODES.items() if dtype == compute_dtype), "fp8")


def mode_formats(
    mode: str, fsdp: int = 0, policy: Mapping[str, str] | None = None, *, float32: bool = False
) -> Formats:
    """Returns what Accelerate trains in.

    Without sharding, the model's forward is wrapped in autocast and its outputs are converted to float32. FSDP1 is
    given the same wrapped model and a MixedPrecision besides; FSDP2 is given a MixedPrecisionPolicy and no autocast
    (accelerate/accelerator.py `prepare_model` and `_prepare_fsdp2`, 1.15.0).

    Args:
      mode: `no`, `fp16`, `bf16` or `fp8`.
      fsdp: Version of FSDP; 0 for none.
      policy: The dtypes of the FSDP plugin's policy by its own keys; None for the one that Accelerate makes.
      float32: True where the device takes no float16 and Accelerate leaves everything in float32 (a CPU).
    """
    dtype = MODES.get(mode, "bfloat16")
    if float32 and mode == "fp16":
        return Formats("float32")
    scale = DEFAULT_SCALE if mode == "fp16" else None
    if not fsdp or (mode == "no" and policy is None):
        return Formats(dtype, loss_scale=scale)
    policy = policy or {}
    inner = policy.get("param_dtype", dtype)
    reduce = policy.get("reduce_dtype", inner)
    if fsdp == 1:
        # Gradients that wait unsharded for the last micro-batch are still those of the 16-bit weights.
        sums = Reductions(reduce_dtype=reduce, accumulate_dtype=inner, buffer_dtype=policy.get("buffer_dtype", dtype))
        return Formats(inner if mode == "no" else dtype, inner if mode == "no" else "float32", sums, loss_scale=scale)
    sums = Reductions(reduce_dtype=reduce, accumulate_dtype=reduce)
    return Formats(inner, policy.get("output_dtype", inner), sums, loss_scale=scale)


def deepspeed_formats(mode: str) -> Formats:
    """Returns what DeepSpeed trains in with a configuration that Accelerate fills in by `mixed_precision` alone."""
    dtype = MODES.get(mode, "bfloat16")
    if dtype == "float32":
        return Formats("float32")
    sums = Reductions(reduce_dtype=dtype, accumulate_dtype=dtype)
    scale = _DEEPSPEED_SCALE if dtype == "float16" else None
    return Formats(dtype, dtype, sums, param_dtype=dtype, master="float32", loss_scale=scale)

# SPDX-License-Identifier: Apache-2.0
"""The ways in which DeepSpeed trains, and the formats that result from its keys, by ZeRO stage and version.

Every rule here was measured on DeepSpeed 0.19.8 by the dtypes of tensors and by sums that a format cannot hold; the
versions were read from the tags of deepspeedai/DeepSpeed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floatwise.exporters.version import Version
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.plan.model import Plan

__all__ = [
    "AUTOCAST_SINCE",
    "BLOCK",
    "BUFFERS_KEPT_SINCE",
    "FP16_STAGE_0_BROKEN_SINCE",
    "SHORT",
    "Mode",
    "mode_of_plan",
    "sums_in",
]

SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""DeepSpeed's names of formats (runtime/config.py, `DtypeEnum`), as `communication_data_type` takes them."""

BLOCK = {"float16": "fp16", "bfloat16": "bf16"}
"""The table that stores weights in a format."""

AUTOCAST_SINCE = "0.17.2"
"""First version with the table torch_autocast (tag v0.17.2, runtime/torch_autocast.py)."""

BUFFERS_KEPT_SINCE = "0.19.2"
"""From here buffers keep their format unless data_types.buffer_dtype says otherwise; before, `module.half()` or
`module.bfloat16()` cast them too (runtime/engine.py, tags v0.19.1 and v0.19.2)."""

FP16_STAGE_0_BROKEN_SINCE = "0.18.3"
"""From here `engine.backward` scales the loss for ZeRO's optimizers only, while FP16_UnfusedOptimizer still divides
gradients by the scale (runtime/engine.py, tags v0.18.2 and v0.18.3; deepspeedai/DeepSpeed#8393; 0.19.8 measured)."""

# Before it, bfloat16 weights without ZeRO could have float32 sums (and up to 0.17.5 had to); from it on they cannot.
_BF16_STAGE_0_OWN_SUMS = "0.18.5"


@dataclass(frozen=True)
class Mode:
    """A way to train.

    Attributes:
      kind: `float32`; `autocast` for float32 weights under `torch.autocast`; `stored` for 16-bit weights with float32
        master weights in the optimizer.
      dtype: The format matrix products compute in.
    """

    kind: Literal["float32", "autocast", "stored"]
    dtype: str

    @property
    def weights(self) -> str:
        """The format of the weights, and of their gradients."""
        return self.dtype if self.kind == "stored" else "float32"


def mode_of_plan(plan: Plan) -> Mode:
    """Returns the mode for a plan; float8, which DeepSpeed has not, as bfloat16."""
    compute = "bfloat16" if plan.compute_dtype in FLOAT8_FORMATS else plan.compute_dtype
    if compute == "float32":
        return Mode("float32", compute)
    return Mode("autocast" if plan.policy.param_dtype == "float32" else "stored", compute)


def sums_in(mode: Mode, stage: int, version: Version, wanted: str | None) -> str:
    """Returns the format in which gradients are summed over micro-batches.

    Args:
      mode: How the model trains.
      stage: The ZeRO stage.
      version: DeepSpeed's version.
      wanted: data_types.grad_accum_dtype; None where it is absent.
    """
    if wanted is None:
        return mode.weights
    if stage == 0:
        old = version < Version.of(_BF16_STAGE_0_OWN_SUMS)
        return wanted if old and mode == Mode("stored", "bfloat16") and wanted == "float32" else mode.weights
    # At stage 2 the gradients of float32 weights are summed in float32 whatever the key says (measured).
    return "float32" if stage == 2 and mode.weights == "float32" else wanted

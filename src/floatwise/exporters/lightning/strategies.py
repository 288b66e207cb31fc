# SPDX-License-Identifier: Apache-2.0
"""What Lightning's precision texts stand for, which depends on the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = [
    "ALIASES",
    "CLIPS_BY_PLUGIN",
    "PRECISIONS",
    "PRECISION_PLUGINS",
    "STRATEGIES",
    "Formats",
    "formats_of",
    "strategy_of_name",
]

PRECISIONS = (
    "32-true",
    "16-mixed",
    "bf16-mixed",
    "16-true",
    "bf16-true",
    "64-true",
    "transformer-engine",
    "transformer-engine-float16",
)
"""lightning/fabric/plugins/precision/precision.py, 2.6.6."""

ALIASES: Mapping[object, str] = MappingProxyType(
    {
        16: "16-mixed",
        "16": "16-mixed",
        "bf16": "bf16-mixed",
        32: "32-true",
        "32": "32-true",
        64: "64-true",
        "64": "64-true",
    }
)
"""The same file, `_PRECISION_INPUT_STR_ALIAS_CONVERSION`; those of 16 bits warn (fabric/connector.py)."""

PRECISION_PLUGINS = (
    "MixedPrecision",
    "HalfPrecision",
    "DoublePrecision",
    "FSDPPrecision",
    "DeepSpeedPrecision",
    "TransformerEnginePrecision",
    "BitsandbytesPrecision",
    "XLAPrecision",
)
"""lightning/pytorch/plugins/__init__.py, 2.6.6."""

_FIVE = ("32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true")

STRATEGIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "auto": PRECISIONS,
        "ddp": PRECISIONS,
        "fsdp": _FIVE,
        "model_parallel": ("32-true", "bf16-mixed", "bf16-true", "16-true"),
        "deepspeed": _FIVE,
    }
)
"""The precision texts that each strategy takes (fabric/connector.py and plugins/precision/*.py, 2.6.6)."""

CLIPS_BY_PLUGIN = ("auto", "ddp", "model_parallel")
"""The strategies whose gradients MixedPrecision clips (pytorch/plugins/precision/amp.py, 2.6.6)."""

_CLASSES = {
    "DDPStrategy": "ddp",
    "FSDPStrategy": "fsdp",
    "ModelParallelStrategy": "model_parallel",
    "DeepSpeedStrategy": "deepspeed",
}
_SIXTEEN = {"16": "float16", "bf16": "bfloat16", "32": "float32"}


@dataclass(frozen=True)
class Formats:
    """What a precision text means.

    Attributes:
      stored: The format of the weights that forward uses and, without masters, of those that are updated.
      compute: The format of products.
      masters: True when float32 weights are kept and updated beside 16-bit ones.
      sums: The format that gradients are reduced in.
      kept: The format that gradients are summed over batches in.
      buffers: The format of buffers.
    """

    stored: str
    compute: str
    masters: bool
    sums: str
    kept: str
    buffers: str


def formats_of(precision: str, strategy: str) -> Formats:
    """Returns what one of the five texts with a bit width stands for under a strategy."""
    name, _, kind = precision.partition("-")
    low = _SIXTEEN[name]
    if strategy == "deepspeed":
        # Both kinds write fp16.enabled or bf16.enabled (fabric/strategies/deepspeed.py): 16-bit weights and gradients,
        # and float32 weights in DeepSpeed's optimizer. DeepSpeed keeps the format of buffers.
        return Formats(low, low, low != "float32", low, low, "float32" if kind == "mixed" else low)
    if kind == "true":
        return Formats(low, low, False, low, low, low)
    if strategy == "fsdp":
        # param_dtype = reduce_dtype = buffer_dtype (plugins/precision/fsdp.py).
        return Formats("float32", low, False, low, "float32", low)
    return Formats("float32", low, False, "float32", "float32", "float32")


def strategy_of_name(name: str) -> str | None:
    """Returns which of `STRATEGIES` a strategy's text or class is; None for others, such as XLA's."""
    if name in _CLASSES:
        return _CLASSES[name]
    if name in ("auto", "") or name.startswith("single"):
        return "auto"
    return next((kind for kind in ("ddp", "fsdp", "deepspeed") if name.split("_")[0] == kind), None)

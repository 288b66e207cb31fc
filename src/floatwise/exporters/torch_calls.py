# SPDX-License-Identifier: Apache-2.0
"""What the calls of a PyTorch script say about precision, as far as they are literal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from floatwise.exporters.grad_scaler import SCALER_NAMES, loss_scale_of, named_arguments
from floatwise.exporters.settings import UNKNOWN, Call, Dotted, Settings
from floatwise.plan.model import LossScale
from floatwise.plan.problems import Loc

__all__ = [
    "DTYPE_CHOICES",
    "Autocast",
    "Cast",
    "autocasts_of",
    "call_loc",
    "cast_of_model",
    "dtype_of",
    "float32_matmul_of",
    "scale_of",
]

# torch's own names and the other names it has for them (torch/csrc/utils/tensor_dtypes.cpp, 2.13.0).
_DTYPES = {
    "float32": "float32",
    "float": "float32",
    "float16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float64": "float64",
    "double": "float64",
}
DTYPE_CHOICES = tuple(Dotted(f"torch.{name}") for name in ("float32", "bfloat16", "float16", "float", "half"))
"""The dtypes that a plan can hold, as torch names them, with its short names at the end."""

_CASTING_METHODS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
_METHODS_OF_MODELS = frozenset({"parameters", "named_parameters", "train", "eval", "modules", "named_modules"})
_TAKE_A_MODEL = frozenset(
    {"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "DataParallel", "fully_shard", "compile"}
)


@dataclass(frozen=True)
class Autocast:
    """An autocast region.

    Attributes:
      device: `cuda`, `cpu`, …; empty when only running would tell.
      dtype: The format as a plan names it; None when only running would tell.
      is_default: True when the call names no dtype, and the device decides.
      enabled: False for a region that switches autocast off; None when only running would tell.
      deprecated: True for the spellings `torch.cuda.amp.autocast` and `torch.cpu.amp.autocast`.
      loc: Where the call stands.
    """

    device: str
    dtype: str | None
    is_default: bool
    enabled: bool | None
    deprecated: bool
    loc: Loc


@dataclass(frozen=True)
class Cast:
    """A model put into one format as a whole.

    Attributes:
      dtype: The format.
      loc: Where the call stands.
    """

    dtype: str
    loc: Loc


def dtype_of(value: Any) -> str | None:
    """Returns the format of a dtype in source (`torch.half` is `float16`); None when it is none."""
    return _DTYPES.get(value.last) if isinstance(value, Dotted) else None


def call_loc(settings: Settings, call: Call) -> Loc:
    """Returns where a call stands: its name and, after the first of that name, its place among them."""
    same = [other for other in settings.calls if other.name == call.name]
    index = next((i for i, other in enumerate(same) if other is call), 0)
    return (call.name, index) if index else (call.name,)


def autocasts_of(settings: Settings) -> list[Autocast]:
    """Returns the autocast regions, in the order of the source."""
    return [_autocast(settings, call) for call in settings.calls if call.name == "autocast"]


def scale_of(settings: Settings, *, float16: bool) -> LossScale | None:
    """Returns the loss scale of the first scaler in the source; None without one.

    Args:
      settings: The source.
      float16: Whether gradients are float16. A scaler that is enabled only when something is true at run time is then
        taken for enabled, and else for disabled.

    Raises:
      SettingsProblems: Its arguments contradict each other.
    """
    call = next((call for call in settings.calls if call.name in SCALER_NAMES), None)
    if call is None:
        return None
    enabled = named_arguments(call).get("enabled", True)
    if not isinstance(enabled, bool) and not float16:
        return None
    return loss_scale_of(call)


def cast_of_model(settings: Settings) -> Cast | None:
    """Returns the last format that the source puts a whole model into; None when it names none.

    `x.half()` of a batch looks the same as `model.half()`: a name counts as a model when the source also asks it for
    its parameters, switches it between training and evaluation, or hands it to DDP, FSDP or torch.compile.
    """
    models = _models(settings)
    casts = [cast for call in settings.calls if (cast := _cast(settings, call, models))]
    return casts[-1] if casts else None


def float32_matmul_of(settings: Settings) -> Literal["ieee", "tf32"]:
    """Returns how float32 products are computed: TF32 where the source sets the precision to high or medium."""
    for call in reversed(settings.calls):
        if call.name == "set_float32_matmul_precision" and call.args:
            return "tf32" if call.args[0] in ("high", "medium") else "ieee"
    return "ieee"


def _autocast(settings: Settings, call: Call) -> Autocast:
    owner = call.dotted.rpartition(".")[0]
    old = next((device for device in ("cuda", "cpu") if owner.endswith(f"{device}.amp")), "")
    # torch.cuda.amp.autocast(enabled, dtype, cache_enabled) has no device (torch/cuda/amp/autocast_mode.py, 2.13.0).
    names = ("enabled", "dtype", "cache_enabled") if old else ("device_type", "dtype", "enabled", "cache_enabled")
    values = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    device = old or _device(values.get("device_type", UNKNOWN))
    given = values.get("dtype")
    default = {"cuda": "float16", "cpu": "bfloat16"}.get(device)
    enabled = values.get("enabled", True)
    return Autocast(
        device=device,
        dtype=default if given is None else dtype_of(given),
        is_default=given is None,
        enabled=enabled if isinstance(enabled, bool) else None,
        deprecated=bool(old),
        loc=call_loc(settings, call),
    )


def _device(value: Any) -> str:
    return value.partition(":")[0] if isinstance(value, str) and not isinstance(value, Dotted) else ""


def _models(settings: Settings) -> frozenset[str]:
    found = {
        owner
        for call in settings.calls
        if call.name in _METHODS_OF_MODELS and (owner := call.dotted.rpartition(".")[0])
    }
    for call in settings.calls:
        if call.name in _TAKE_A_MODEL:
            given = call.args[0] if call.args else None
            # Of a variable at module level the reader gives what it was assigned.
            name = given.assigned if isinstance(given, Call) else given if isinstance(given, Dotted) else ""
            found |= {call.assigned, str(name)}
    return frozenset(found - {""})


def _cast(settings: Settings, call: Call, models: frozenset[str]) -> Cast | None:
    owner = call.dotted.rpartition(".")[0]
    if call.name == "from_pretrained":
        dtype = _pretrained_dtype(call)
    elif call.name == "set_default_dtype":
        dtype = next((d for value in call.args if (d := dtype_of(value))), None)
    elif (owner or call.assigned) in models:
        # Of `model = Net().half()` the owner is a call: what it is assigned to tells.
        dtype = _CASTING_METHODS.get(call.name) or next(_dtypes_of_to(call), None)
    else:
        dtype = None
    return Cast(dtype, call_loc(settings, call)) if dtype else None


def _dtypes_of_to(call: Call) -> Iterator[str]:
    if call.name == "to":
        yield from (d for value in (*call.args, call.kwargs.get("dtype")) if (d := dtype_of(value)))


def _pretrained_dtype(call: Call) -> str | None:
    value = call.kwargs.get("dtype", call.kwargs.get("torch_dtype"))
    if isinstance(value, str) and not isinstance(value, Dotted):
        return _DTYPES.get(value)
    return dtype_of(value)

# SPDX-License-Identifier: Apache-2.0
"""PyTorch's GradScaler in Python source: its arguments from a loss scale, and a loss scale from its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from floatwise.exporters.knob import Knob
from floatwise.exporters.nearest import NO_CEILING, NO_FLOOR
from floatwise.exporters.settings import Call, SettingsProblems
from floatwise.language import Text
from floatwise.plan.model import LossScale
from floatwise.plan.problems import PlanProblems, Problem

__all__ = [
    "SCALER_NAMES",
    "grad_scaler_arguments",
    "grad_scaler_knobs",
    "loss_scale_of",
    "loss_scaler_arguments",
    "named_arguments",
]

SCALER_NAMES = ("GradScaler", "ShardedGradScaler", "LossScaler")
"""The classes that take these arguments: PyTorch's two, and `fw.torch.LossScaler`."""

# GradScaler has no static mode: growth is put off beyond any training. Its growth tracker is an int32.
_NEVER = 2**31 - 1
_SOURCE = "torch/amp/grad_scaler.py, 2.13.0"

# The order of positional arguments; ShardedGradScaler has its own (torch/distributed/fsdp/sharded_grad_scaler.py).
_NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_POSITIONS: Mapping[str, tuple[str, ...]] = {
    "GradScaler": ("device", *_NUMBERS),
    "LossScaler": ("device", *_NUMBERS),
    "ShardedGradScaler": ("device", "init_scale", "backoff_factor", "growth_factor", "growth_interval", "enabled"),
}
# What fw.torch.LossScaler has beyond GradScaler, by the same names as a plan.
_BEYOND = ("floor", "ceiling", "growth", "headroom_bits", "hysteresis", "window_log2")


def grad_scaler_arguments(scale: LossScale) -> dict[str, Any]:
    """Returns GradScaler's arguments by name.

    A static scale gets no growth within any training; an overflow still halves it, which GradScaler cannot leave out
    (its `backoff_factor` must be under 1).
    """
    return {
        "init_scale": scale.initial_scale,
        "growth_factor": scale.growth_factor,
        "backoff_factor": scale.backoff_factor,
        "growth_interval": _NEVER if scale.mode == "static" else scale.growth_interval,
    }


def loss_scaler_arguments(scale: LossScale) -> dict[str, Any]:
    """Returns the arguments by name of `fw.torch.LossScaler`, which holds every value of a loss scale."""
    values = {
        "init_scale": scale.initial_scale,
        "growth_factor": scale.growth_factor,
        "backoff_factor": scale.backoff_factor,
        "growth_interval": scale.growth_interval,
        "dynamic": scale.mode == "dynamic",
        **{name: getattr(scale, name) for name in _BEYOND},
    }
    return {name: value for name, value in values.items() if value is not None}


def named_arguments(call: Call) -> dict[str, Any]:
    """Returns the arguments of a scaler's call by name, the positional ones too."""
    names: tuple[str, ...] = _POSITIONS.get(call.name, _POSITIONS["GradScaler"])
    if call.dotted.endswith(("cuda.amp.GradScaler", "cpu.amp.GradScaler")):
        names = _NUMBERS  # the deprecated spellings have no device
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def _float64(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number past float64
        return math.inf


def loss_scale_of(call: Call) -> LossScale | None:
    """Returns the loss scale of a GradScaler call; None when it says `enabled=False`.

    Raises:
      SettingsProblems: Its arguments contradict each other.
    """
    values: Mapping[str, Any] = named_arguments(call)
    if values.get("enabled") is False:
        return None
    fields = {
        ours: values[theirs]
        for theirs, ours in (
            ("init_scale", "initial_scale"),
            ("growth_factor", "growth_factor"),
            ("backoff_factor", "backoff_factor"),
            ("growth_interval", "growth_interval"),
        )
        if isinstance(values.get(theirs), int | float)
    }
    for name in ("initial_scale", "growth_factor", "backoff_factor"):
        if name in fields:
            fields[name] = _float64(fields[name])
    if "growth_interval" in fields:
        fields["growth_interval"] = int(fields["growth_interval"])
    fields |= _beyond(values) if call.name == "LossScaler" else _PLAIN
    try:
        return LossScale(**fields)
    except PlanProblems as error:
        raise SettingsProblems([Problem((call.name, *p.loc), p.text) for p in error.problems]) from None


# GradScaler grows without looking, and has no limits.
_PLAIN: Mapping[str, Any] = {"growth": "fixed", "floor": NO_FLOOR, "ceiling": NO_CEILING}


def _beyond(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what fw.torch.LossScaler's arguments say beyond GradScaler's; its defaults are the plan's."""
    fields = {name: values[name] for name in _BEYOND if isinstance(values.get(name), (int, float, str, list, tuple))}
    for name in ("floor", "ceiling"):
        if name in fields:
            fields[name] = float(fields[name])
    if values.get("dynamic") is False:
        fields["mode"] = "static"
    return fields


def grad_scaler_knobs(name: str = "GradScaler") -> tuple[Knob, ...]:
    """Returns the rows of GradScaler's arguments, under the name of the call."""
    return (
        Knob(
            key=f"{name}.init_scale",
            kind="float",
            default=65536.0,
            above=0,
            maximum=2.0**127,
            why="the scale is a float32, and the loss times it must be finite",
            meaning=Text("The loss scale of the first step.", "第一步的损失缩放系数。"),
            source=_SOURCE,
        ),
        Knob(
            key=f"{name}.growth_factor",
            kind="float",
            default=2.0,
            above=1,
            meaning=Text(
                "What the scale is multiplied by after growth_interval good steps.",
                "连续 growth_interval 步正常后的倍数。",
            ),
            source=_SOURCE,
        ),
        Knob(
            key=f"{name}.backoff_factor",
            kind="float",
            default=0.5,
            above=0,
            below=1,
            meaning=Text("What the scale is multiplied by after an overflow.", "溢出后的倍数。"),
            source=_SOURCE,
        ),
        Knob(
            key=f"{name}.growth_interval",
            kind="int",
            default=2000,
            minimum=1,
            below=2**31,
            meaning=Text("Good steps in a row before the scale grows.", "缩放系数增大之前需要连续正常的步数。"),
            source=_SOURCE,
        ),
        Knob(
            key=f"{name}.enabled",
            kind="bool",
            default=True,
            meaning=Text("False: gradients are not scaled at all.", "False 表示完全不缩放梯度。"),
            source=_SOURCE,
        ),
    )

# SPDX-License-Identifier: Apache-2.0
"""The loss scale in the arguments of Lightning's DeepSpeedStrategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from floatwise.exporters.nearest import NO_CEILING
from floatwise.exporters.settings import SettingsProblems
from floatwise.plan.model import LossScale
from floatwise.plan.problems import Loc, PlanProblems, Problem

__all__ = ["scale_of_strategy", "strategy_arguments"]

# lightning/pytorch/strategies/deepspeed.py, 2.6.6.
_DEFAULTS: Mapping[str, Any] = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
}


def strategy_arguments(scale: LossScale) -> dict[str, Any]:
    """Returns the arguments by name. The start of a dynamic scale is a power of two from 1 on, the floor a whole."""
    power = max(0, math.floor(math.log2(scale.initial_scale)))
    floor = max(1, math.ceil(scale.floor))
    return {
        "loss_scale": scale.initial_scale if scale.mode == "static" else 0,
        "initial_scale_power": power,
        "loss_scale_window": scale.growth_interval,
        "hysteresis": scale.hysteresis,
        "min_loss_scale": min(floor, 2**power) if scale.mode == "dynamic" else floor,
    }


def scale_of_strategy(given: Mapping[str, Any], loc: Loc) -> LossScale:
    """Returns the loss scale of the arguments; what is missing has Lightning's default.

    Raises:
      SettingsProblems: The arguments contradict each other.
    """
    values = {name: given[name] if isinstance(given.get(name), int | float) else _DEFAULTS[name] for name in _DEFAULTS}
    static = values["loss_scale"] > 0
    try:
        # DeepSpeed doubles and halves, and has no ceiling (deepspeed/runtime/fp16/loss_scaler.py, 0.19.8).
        return LossScale(
            mode="static" if static else "dynamic",
            initial_scale=float(values["loss_scale"]) if static else 2.0 ** values["initial_scale_power"],
            growth_interval=int(values["loss_scale_window"]),
            hysteresis=int(values["hysteresis"]),
            floor=float(values["min_loss_scale"]),
            ceiling=NO_CEILING,
            growth="fixed",
        )
    except PlanProblems as error:
        raise SettingsProblems([Problem((*loc, "strategy"), f"{p.loc}: {p.text}") for p in error.problems]) from None

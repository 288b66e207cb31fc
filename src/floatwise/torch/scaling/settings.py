# SPDX-License-Identifier: Apache-2.0
"""What a loss scaler may be made of, and where it scales when nobody says."""

from __future__ import annotations

import torch

from floatwise.errors import BadInputError

__all__ = ["SMALLEST_SCALE", "check_scale", "check_settings", "default_device", "is_sound_scale"]

# The smallest normal float32 (IEEE 754-2019, table 3.5): the reciprocal of a smaller scale can be infinite,
# and unscaling with it writes NaN into the weights.
SMALLEST_SCALE = 2.0**-126
_LARGEST_SCALE = 2.0**127

# From the smallest subnormal, 2**-24, to the largest float16, 2**16 and a little less (IEEE 754-2019, binary16).
_FLOAT16_RANGE_BITS = 40


def default_device() -> str:
    """Returns the type of this machine's accelerator; `cpu` without one."""
    if torch.cuda.is_available():  # says no without a warning where there is a build for it but no driver
        return "cuda"
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if device is None else device.type


def is_sound_scale(scale: float) -> bool:
    """Returns whether a scale and its reciprocal are normal float32 numbers."""
    return SMALLEST_SCALE <= scale <= _LARGEST_SCALE


def check_scale(name: str, scale: float) -> None:
    """Raises BadInputError unless the scale is sound."""
    if not is_sound_scale(scale):
        raise BadInputError(f"got {name} {scale!r}; expected a number from 2**-126 to 2**127, such as 65536.0")


def check_settings(
    init_scale: float,
    floor: float,
    ceiling: float,
    growth: str,
    headroom_bits: int,
    hysteresis: int,
    alarm_after: int | None,
) -> None:
    """Raises BadInputError for a setting outside what is allowed."""
    for name, value in (("init_scale", init_scale), ("floor", floor), ("ceiling", ceiling)):
        check_scale(name, value)
    if floor > ceiling:
        raise BadInputError(f"got floor {floor!r} above ceiling {ceiling!r}; give them the other way round")
    if growth not in ("headroom", "fixed"):
        raise BadInputError(f"got growth {growth!r}; expected 'headroom' or 'fixed'")
    if not 0 <= headroom_bits <= _FLOAT16_RANGE_BITS:
        raise BadInputError(f"got headroom_bits {headroom_bits!r}; expected 0 to {_FLOAT16_RANGE_BITS}, such as 4")
    if hysteresis < 1:
        raise BadInputError(f"got hysteresis {hysteresis!r}; expected 1 or more overflows before the scale backs off")
    if alarm_after is not None and alarm_after < 1:
        raise BadInputError(f"got alarm_after {alarm_after!r}; expected 1 or more skipped steps, or None for no alarm")

# SPDX-License-Identifier: Apache-2.0
"""Which loss scale settings contradict each other, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from floatwise.plan.problems import Conflict, Rule

if TYPE_CHECKING:
    from floatwise.plan.model import LossScale

__all__ = ["SCALE_RULES"]

# IEEE 754-2019, table 3.5: binary32's smallest normal and largest number.
_FLOAT32_SMALLEST = 2.0**-126
_FLOAT32_MAX = 2.0**128 - 2.0**104


def _outside_float32(scale: LossScale) -> Iterator[Conflict]:
    for key in ("initial_scale", "floor", "ceiling"):
        value = getattr(scale, key)
        if not _FLOAT32_SMALLEST <= value <= _FLOAT32_MAX:
            yield Conflict(
                (key,), f"got {value!r}, which is no normal float32", "write a number from 2**-126 to 2**127"
            )


def _floor_above_start(scale: LossScale) -> Iterator[Conflict]:
    if scale.mode == "dynamic" and scale.floor > scale.initial_scale:
        yield Conflict(
            ("floor",),
            f"got {scale.floor!r}, above initial_scale = {scale.initial_scale!r}",
            f"write floor = {scale.initial_scale!r} or less",
        )


def _ceiling_below_start(scale: LossScale) -> Iterator[Conflict]:
    if scale.mode == "dynamic" and scale.ceiling < scale.initial_scale:
        yield Conflict(
            ("ceiling",),
            f"got {scale.ceiling!r}, below initial_scale = {scale.initial_scale!r}",
            f"write ceiling = {scale.initial_scale!r} or more",
        )


def _window_backwards(scale: LossScale) -> Iterator[Conflict]:
    if scale.window_log2 and scale.window_log2[0] > scale.window_log2[1]:
        low, high = scale.window_log2
        yield Conflict(("window_log2",), f"got [{low}, {high}]", f"write the smaller first: [{high}, {low}]")


SCALE_RULES = (
    Rule(
        "scale_outside_float32",
        frozenset({"initial_scale", "floor", "ceiling"}),
        _outside_float32,
        why="the scale is a float32 on the device, where smaller ones lose bits and larger ones are inf",
        source="torch.amp.GradScaler: `_scale` is a float32 tensor",
    ),
    Rule(
        "floor_above_start",
        frozenset({"mode", "initial_scale", "floor"}),
        _floor_above_start,
        why="the first overflow would raise the scale instead of lowering it",
        source="measured on DeepSpeed 0.19.8 (initial_scale_power under min_loss_scale)",
    ),
    Rule(
        "ceiling_below_start",
        frozenset({"mode", "initial_scale", "ceiling"}),
        _ceiling_below_start,
        why="the run would start with a scale that it must never reach",
        source="convention",
    ),
    Rule(
        "window_backwards",
        frozenset({"window_log2"}),
        _window_backwards,
        why="the window is the smallest and the largest exponent that lost nothing, in this order",
        source="convention",
    ),
)
"""Combinations within a loss scale that are refused."""

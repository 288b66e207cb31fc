# SPDX-License-Identifier: Apache-2.0
"""Which values occur in a Keras script's layers and losses while it trains, on every backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from floatwise.probe.keras_frames import Frame, Frames
from floatwise.probe.keras_operators import loss_kind
from floatwise.tap.patches import Patches

__all__ = ["watch_layers"]


def watch_layers(patches: Patches, frames: Frames) -> None:
    """Hears layers and losses while gradients will be taken of them; everywhere else nothing is touched.

    Roles: `output` and `grad_output` of layers, `input` of losses. A layer whose own product is a site has no other.

    Args:
      patches: Undo it.
      frames: Get to know where the forward pass is.
    """
    for name in ("__call__", "stateless_call"):  # the latter runs a layer without calling it
        patches.replace(keras.Layer, name, functools.partial(_calling, frames))
    patches.replace(keras.losses.Loss, "__call__", functools.partial(_losing, frames))


def _calling(frames: Frames, original: Callable[..., Any]) -> Callable[..., Any]:
    is_stateless = original.__name__ == "stateless_call"

    @functools.wraps(original)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not frames.hears() or not _is_real(args, kwargs):
            return original(layer, *args, **kwargs)
        above = frames.stack[-1] if frames.stack else None
        if above is None:
            frames.outside.calls.clear()
        root = above.root if above else layer
        frame = Frame(layer, root, frames.paths.of(root, layer, above.path if above else ""))
        frames.stack.append(frame)
        try:
            output = original(layer, *args, **kwargs)
        finally:
            frames.stack.pop()
        if is_stateless:
            outputs, *rest = output
            return (_left(frames, frame, (args, kwargs), outputs), *rest)
        return _left(frames, frame, (args, kwargs), output)

    return call


def _left(frames: Frames, frame: Frame, inputs: Any, output: Any) -> Any:
    if frame.has_own and frame.awaits_bias is None:
        return output
    path = frame.awaits_bias[0] if frame.awaits_bias else frame.path
    if not frame.has_own:
        frames.sites.row(path, type(frame.layer).__name__)
    known = frozenset(frame.products) | frames.sources_of(keras.tree.flatten(inputs))
    if frame.is_float32:
        known = frozenset()

    def watched(value: Any) -> Any:
        if not frames.watcher.is_floating(value):
            return value
        return frames.watch(path, value, frames.sources_of([value]) or known)

    return keras.tree.map_structure(watched, output)


def _losing(frames: Frames, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(loss: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        if not frames.hears():
            return original(loss, y_true, y_pred, *args, **kwargs)
        frame, kind = frames.current, loss_kind(loss)
        site = f"{frame.path}:{kind}{frame.number(kind)}"
        frames.sites.row(site, kind)
        operands = keras.tree.flatten((y_pred, y_true))
        frames.look_at_inputs(site, [value for value in operands if frames.is_array(value)], counts=True)
        frames.is_inside = True  # losses are float32 in Keras, whatever the layers are
        try:
            return original(loss, y_true, y_pred, *args, **kwargs)
        finally:
            frames.is_inside = False

    return call


def _is_real(args: Any, kwargs: Any) -> bool:
    values = keras.tree.flatten((args, kwargs))
    return not any(isinstance(v, keras.KerasTensor) or _is_meta(v) for v in values)


def _is_meta(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "") == "meta"

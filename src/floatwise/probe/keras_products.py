# SPDX-License-Identifier: Apache-2.0
"""Operators in a Keras script's layers: products, softmaxes, and the arithmetic between products."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from floatwise.formats import get_format
from floatwise.probe.keras_frames import Frame, Frames
from floatwise.probe.keras_operators import ARITHMETIC, PRODUCTS, RECURRENT, WATCHED, operator_kind, replace_operators
from floatwise.probe.keras_shapes import product_shape, recurrent_shape
from floatwise.tap.patches import Patches

__all__ = ["watch_operators"]


def watch_operators(patches: Patches, frames: Frames, backend: str) -> None:
    """Hears operators while gradients will be taken of what they return.

    Roles: `input`, `output` and `grad_output`. Sites are those of PyTorch's probe: `layer path:operator`, with `#2` for
    the second in one call; a layer's own product is the layer itself, with its bias. Arithmetic is a site where it is
    computed from a product's result within a layer: outside Keras computes losses, in float32.
    """
    probe = _Operators(frames)
    replace_operators(patches, backend, probe.make)


class _Operators:
    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def make(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Returns what replaces a function of that name."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def operator(*args: Any, **kwargs: Any) -> Any:
                frames = self._frames
                if not frames.hears():
                    return original(*args, **kwargs)
                frames.is_inside = True
                try:
                    output = original(*args, **kwargs)
                    return self._computed(name, args, kwargs, output)
                finally:
                    frames.is_inside = False

            return operator

        return wrap

    def _computed(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Any:
        frames, frame = self._frames, self._frames.current
        operands = [*args, *kwargs.values()]
        if name in RECURRENT:
            return self._recurrent(frame, name, operands, output)
        if name not in WATCHED or not frames.watcher.is_floating(output):
            if not frame.is_float32:
                frames.tag_all(output, frames.sources_of(keras.tree.flatten(operands)))
            return output
        if name in ARITHMETIC:
            return self._arithmetic(frame, name, operands, output)
        if name in PRODUCTS:
            return self._product(frame, name, operands, output)
        site = f"{frame.path}:{name}{frame.number(name)}"
        frames.sites.row(site, name)
        frames.look_at_inputs(site, [o for o in operands if frames.is_array(o)], counts=True)
        return output

    def _product(self, frame: Frame, name: str, operands: Sequence[Any], output: Any) -> Any:
        frames = self._frames
        weights = self._weights(frame, operands)
        number = frame.number(name)
        path, owner = self._owner(frame, [variable for _, variable in weights])
        own = owner is not None and (owner is not frame.layer or not frame.has_own)
        kind = operator_kind(name, operands, own)
        site = path if own else f"{frame.path}:{kind}{number}"
        row = frames.sites.row(site, kind, matrix=True)
        row.weights |= {weight for weight, _ in weights}
        inputs = [o for o in operands if not isinstance(o, keras.Variable) and frames.is_array(o)]
        frames.look_at_inputs(site, inputs, counts=False)
        first = getattr(owner or frame.layer, "data_format", None) == "channels_first"
        row.shape = row.shape or product_shape(name, operands, output, first)
        row.sources |= frames.sources_of(inputs)
        frame.products.add(site)
        if own:
            frame.has_own |= owner is frame.layer
            # A recurrent cell adds its two products before the bias.
            if getattr(owner, "bias", None) is not None and not hasattr(owner, "recurrent_kernel"):
                frame.awaits_bias = site, owner
                frames.tag(output, frozenset({site}))
                return output
        return frames.watch(site, output, frozenset({site}))

    def _arithmetic(self, frame: Frame, name: str, operands: Sequence[Any], output: Any) -> Any:
        frames = self._frames
        sources = frames.sources_of(operands)
        if frame.awaits_bias and name == "add" and sources == {frame.awaits_bias[0]}:
            site, owner = frame.awaits_bias
            frame.awaits_bias = None
            frames.sites.rows[site].weights |= {path for path, _ in self._weights(frame, [owner.bias])}
            return frames.watch(site, output, frozenset({site}))
        if not sources or not frames.stack or frame.is_float32:
            return output
        kind = ARITHMETIC[name]
        site = f"{frame.path}:{kind}{frame.number(kind)}"
        row = frames.sites.row(site, kind)
        row.sources |= sources
        row.constant = row.constant or _unholdable(operands, kind)
        frames.watcher.look(output, frames.sites.computed(site))
        frames.tag(output, sources)
        return output

    def _recurrent(self, frame: Frame, name: str, operands: Sequence[Any], output: Any) -> Any:
        """A whole recurrent layer in one operator, which returns its last output, all outputs and its states."""
        frames = self._frames
        frame.has_own = True
        row = frames.sites.row(frame.path, name, matrix=True)
        weights = self._weights(frame, operands)
        row.weights |= {weight for weight, _ in weights}
        row.shape = row.shape or recurrent_shape([variable for _, variable in weights])
        inputs = [o for o in keras.tree.flatten(operands) if not isinstance(o, keras.Variable) and frames.is_array(o)]
        frames.look_at_inputs(frame.path, inputs[:1], counts=False)
        row.sources |= frames.sources_of(inputs[:1])
        last, outputs, *rest = output
        made = frozenset({frame.path})
        gradient = frames.sites.heard(frame.path, "grad_output")
        if last is not outputs:
            last = frames.watcher.pass_through(last, frames.sites.heard(frame.path, "output"), gradient)
            frames.tag(last, made)
        return (last, frames.watch(frame.path, outputs, made), *rest)

    def _weights(self, frame: Frame, operands: Sequence[Any]) -> list[tuple[str, Any]]:
        variables = [o for o in operands if isinstance(o, keras.Variable)]
        if variables and frame.root is not None:
            self._frames.paths.learn(frame.root)
        return [(path, v) for v in variables if (path := self._frames.paths.of_variable(v)) is not None]

    def _owner(self, frame: Frame, variables: Sequence[Any]) -> tuple[str, Any]:
        """Returns the layer without layers in it whose weight this is: the one that runs, or one that it runs."""
        for variable in variables:
            path, layer = self._frames.paths.owner(variable)
            if layer is None or layer._layers:
                continue
            if layer is frame.layer:
                return frame.path, layer
            if path.startswith(f"{frame.path}." if frame.path else "") and hasattr(layer, "bias"):
                return path, layer  # whose `call` a wrapper calls
        return "", None


def _unholdable(operands: Sequence[Any], operator: str) -> float:
    """Returns a number among the operands that float16 makes infinite, or that it makes zero where it is added."""
    largest, vanishing = get_format("float16").max, get_format("float16").flush_threshold
    for number in operands:
        if isinstance(number, float) and number and math.isfinite(number):
            if abs(number) > largest or (operator in ("add", "sub") and abs(number) <= vanishing):
                return number
    return 0.0

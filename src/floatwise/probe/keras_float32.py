# SPDX-License-Identifier: Apache-2.0
"""A Keras script trained in float32, whatever precision it asks for; what it asks for is told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from floatwise.keras.script.replaced import replace_policies
from floatwise.tap.frames import users_line
from floatwise.tap.patches import Patches

__all__ = ["train_in_float32"]

Tell = Callable[[str, str, str], None]

_MIXED = ("mixed_float16", "mixed_bfloat16")
_SIXTEEN_BIT = ("float16", "bfloat16")
#: Options of TensorFlow's graph rewrites that compute in 16 bits (tf.config.optimizer, TensorFlow 2.21).
_REWRITES = ("auto_mixed_precision", "auto_mixed_precision_mkl", "auto_mixed_precision_onednn_bfloat16")


def train_in_float32(patches: Patches, tell: Tell, backend: str) -> None:
    """Replaces what asks for 16 bits: policies, variables, loss scaling, the backend's own means.

    Args:
      patches: Take the replacements.
      tell: Gets the kind, `path:line` and what the script asked for.
      backend: The one that Keras has.
    """
    from keras.src.backend.common.variables import Variable
    from keras.src.dtype_policies.dtype_policy import DTypePolicy
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer as Stock

    from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer as Ours

    replace_policies(patches, lambda _, where, detail: tell("found_dtype_policy", where, detail))
    told = functools.partial(_told, tell)
    patches.replace(DTypePolicy, "__init__", functools.partial(_policy, told))
    patches.replace(DTypePolicy, "_parse_name", _parsed)
    patches.replace(Variable, "__init__", functools.partial(_variable, told))
    patches.replace(BaseOptimizer, "__init__", functools.partial(_optimizer, told))
    patches.replace(Stock, "__init__", functools.partial(_loss_scale, told))
    for owner in (Stock, Ours):
        patches.replace(owner, "scale_loss", lambda _: lambda optimizer, loss: loss)
        patches.replace(owner, "apply", lambda _: _apply)
        patches.replace(owner, "stateless_apply", lambda _: _stateless_apply)
    if backend == "torch":
        _replace_torch(patches, told)
    elif backend == "tensorflow":
        _replace_tensorflow(patches, told)


def _told(tell: Tell, kind: str, detail: str) -> None:
    where = users_line()
    if where:
        tell(kind, where, detail)


def _policy(told: Callable[[str, str], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(policy: Any, name: Any = None, *args: Any, **kwargs: Any) -> None:
        if name in _MIXED:
            told("found_dtype_policy", repr(name))
            name = "float32"
        elif name in _SIXTEEN_BIT:
            told("found_low_precision_weights", str(name))
            name = "float32"
        original(policy, name, *args, **kwargs)

    return init


def _parsed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def parse(policy: Any, name: Any) -> Any:
        return original(policy, "float32" if name in _MIXED + _SIXTEEN_BIT else name)

    return parse


def _variable(told: Callable[[str, str], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(variable: Any, initializer: Any, shape: Any = None, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        asked = dtype if dtype is not None or callable(initializer) else getattr(initializer, "dtype", None)
        name = str(getattr(asked, "name", asked)).rpartition(".")[2]
        if name in _SIXTEEN_BIT:
            told("found_low_precision_weights", name)
            dtype = "float32"
        original(variable, initializer, shape, dtype, *args, **kwargs)

    return init


def _optimizer(told: Callable[[str, str], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        factor = kwargs.get("loss_scale_factor")
        if factor is not None:
            told("found_grad_scaler", f"loss_scale_factor={factor}")
            kwargs["loss_scale_factor"] = None
        original(optimizer, *args, **kwargs)

    return init


def _loss_scale(told: Callable[[str, str], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        told("found_grad_scaler", type(optimizer).__name__)
        original(optimizer, *args, **kwargs)

    return init


def _apply(optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
    variables = None if trainable_variables is None else list(trainable_variables)
    if not optimizer.built:
        optimizer.build(variables)
    optimizer.inner_optimizer.apply(grads, variables)


def _stateless_apply(
    optimizer: Any, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
) -> tuple[Any, Any]:
    own = len(optimizer._variables)
    values = list(optimizer_variables)
    weights, inner = optimizer.inner_optimizer.stateless_apply(values[own:], grads, trainable_variables)
    return weights, [*values[:own], *inner]


def _replace_torch(patches: Patches, told: Callable[[str, str], None]) -> None:
    import torch

    def autocast(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(region: Any, *args: Any, **kwargs: Any) -> None:
            original(region, *args, **kwargs)
            if region._enabled:
                told("found_autocast", str(region.fast_dtype).removeprefix("torch."))
                region._enabled = False

        return init

    def scaler(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            told("found_grad_scaler", type(scaler).__name__)
            original(scaler, *args, **{**kwargs, "enabled": False})

        return init

    patches.replace(torch.amp.autocast_mode.autocast, "__init__", autocast)
    patches.replace(torch.amp.GradScaler, "__init__", scaler)


def _replace_tensorflow(patches: Patches, told: Callable[[str, str], None]) -> None:
    import tensorflow as tf

    def options(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def set_options(options: Any) -> None:
            for name in _REWRITES:
                if options.get(name):
                    told("found_autocast", name)
            original({name: value for name, value in options.items() if name not in _REWRITES})

        return set_options

    patches.replace(tf.config.optimizer, "set_experimental_options", options)

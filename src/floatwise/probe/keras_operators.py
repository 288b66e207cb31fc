# SPDX-License-Identifier: Apache-2.0
"""Functions of Keras' backends that matter for precision: which there are, and what the same is called in PyTorch."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from floatwise.tap.patches import Patches

__all__ = ["ARITHMETIC", "PRODUCTS", "RECURRENT", "WATCHED", "loss_kind", "operator_kind", "replace_operators"]

Make = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Of `keras.src.backend.numpy` and `keras.src.backend.nn` (Keras 3.15): all that layers and `keras.ops` multiply with.
_NUMPY_PRODUCTS = ("matmul", "dot", "tensordot", "einsum", "inner", "vdot")
_NN_PRODUCTS = ("conv", "depthwise_conv", "separable_conv", "conv_transpose", "dot_product_attention")
PRODUCTS = frozenset(_NUMPY_PRODUCTS + _NN_PRODUCTS)
#: Of the backend itself; a backend that has none for its device raises, and layers go through their cells.
RECURRENT = ("lstm", "gru")
_SIGNS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "matmul": "matmul"}
#: What computes in the type of its operands, and PyTorch's names of it.
ARITHMETIC = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "mean": "mean",
}
WATCHED = PRODUCTS | frozenset(ARITHMETIC) | frozenset({"softmax", "log_softmax"})
#: Keras' losses by the function that computes them, and PyTorch's names of those that are the same.
_LOSSES = {
    "mean_squared_error": "mse_loss",
    "mean_absolute_error": "l1_loss",
    "huber": "huber_loss",
    "kl_divergence": "kl_div",
}
_FROM_LOGITS = {
    "categorical_crossentropy": "cross_entropy",
    "sparse_categorical_crossentropy": "cross_entropy",
    "binary_crossentropy": "binary_cross_entropy_with_logits",
}


def replace_operators(patches: Patches, backend: str, make: Callable[[str], Make]) -> None:
    """Replaces each function of the backend by `make(name)(function)`.

    Layers and `keras.ops` look them up at each call. Of functions that are not watched it is of interest what their
    result is computed from. Operators of the tensors themselves (`x + y`) have the names of functions.
    """
    from keras.src import backend as module

    for owner in (module.numpy, module.nn):
        for name, value in list(vars(owner).items()):
            if isinstance(value, types.FunctionType) and value.__module__ == owner.__name__ and name[0] != "_":
                patches.replace(owner, name, make(name))
    for name in RECURRENT:
        patches.replace(module, name, make(name))
    tensor = _tensor_class(backend)
    for sign, name in _SIGNS.items():
        for form in (f"__{sign}__", f"__r{sign}__"):
            if hasattr(tensor, form):
                patches.replace(tensor, form, make(name))


def _tensor_class(backend: str) -> Any:
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.Tensor
    if backend == "jax":
        import jax

        return jax.core.Tracer
    import torch

    return torch.Tensor


def operator_kind(name: str, operands: Sequence[Any], is_own: bool) -> str:
    """Returns what PyTorch's probe calls an operator."""
    if is_own and name == "matmul":
        return "linear"
    if name in ("conv", "depthwise_conv", "separable_conv", "conv_transpose"):
        rank = len(getattr(operands[0], "shape", ())) - 2 if operands else 0
        words = "conv_transpose" if name == "conv_transpose" else "conv"
        return f"{words}{rank}d"
    return "scaled_dot_product_attention" if name == "dot_product_attention" else name


def loss_kind(loss: Any) -> str:
    """Returns what PyTorch's probe calls a loss, or Keras' own name of it.

    A cross entropy of probabilities has Keras' name: PyTorch's is refused by its autocast, Keras' is not.
    """
    function = getattr(loss, "fn", None)
    name = str(getattr(function, "__name__", "") or type(loss).__name__)
    options = getattr(loss, "_fn_kwargs", {}) or {}
    if options.get("from_logits") and name in _FROM_LOGITS:
        return _FROM_LOGITS[name]
    return _LOSSES.get(name, name)

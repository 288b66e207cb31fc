# SPDX-License-Identifier: Apache-2.0
"""Work that must have values of its own although a function is being traced."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import keras

__all__ = ["outside_traces", "under_gradients", "under_tape"]


def outside_traces() -> AbstractContextManager[object]:
    """Returns a context in which tensors and variables are made outside of any function that is being traced."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()  # type: ignore[no-any-return]
    if backend == "jax":
        import jax

        return jax.ensure_compile_time_eval()
    return nullcontext()


def under_gradients() -> bool:
    """Returns whether what is computed now may be differentiated, as far as the backend tells; JAX does not."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.is_grad_enabled()
    return under_tape()


def under_tape() -> bool:
    """Returns whether a TensorFlow tape is recording."""
    if keras.backend.backend() != "tensorflow":
        return False
    from tensorflow.python import pywrap_tfe

    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()

# SPDX-License-Identifier: Apache-2.0
"""How the backend multiplies float32 operands: as the plan's `float32_matmul` says, for the whole process."""

from __future__ import annotations

from typing import Any

import keras

from floatwise.language import Text
from floatwise.plan import Plan

__all__ = ["set_float32_products"]

_SET = Text(
    "products of float32 operands are computed in {how} from now on, in the whole process",
    "从现在起，整个进程中 float32 操作数的乘法以 {how} 计算",
)


def set_float32_products(plan: Plan) -> str | None:
    """Sets TF32 or float32 products and returns what has changed, None when nothing has.

    TensorFlow's own default is TF32 where the GPU has it; JAX's is TF32 there, and bfloat16 on TPUs.
    """
    tf32 = plan.float32_matmul == "tf32"
    said = _SET.format(how="TF32" if tf32 else "float32")
    name = keras.backend.backend()
    if name == "tensorflow":
        import tensorflow as tf

        if tf.config.experimental.tensor_float_32_execution_enabled() != tf32:
            tf.config.experimental.enable_tensor_float_32_execution(tf32)
            return said
    elif name == "jax":
        import jax

        wanted = "tensorfloat32" if tf32 else "float32"
        config: Any = jax.config
        if config.jax_default_matmul_precision != wanted:
            config.update("jax_default_matmul_precision", wanted)
            return said
    elif name == "torch":
        import torch

        wanted = "high" if tf32 else "highest"
        if torch.get_float32_matmul_precision() != wanted:
            torch.set_float32_matmul_precision(wanted)
            return said
    return None

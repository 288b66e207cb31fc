# SPDX-License-Identifier: Apache-2.0
"""Which library function an equation of a traced JAX program belongs to."""

from __future__ import annotations

from floatwise.jax.script.rewriting import Equation

__all__ = ["float32_operator", "is_within_operator"]

#: Functions that autocast computes in float32, under the names that PyTorch's probe gives them (jax.nn 0.10, optax
#: 0.2, the losses without those that are sums of other functions).
_FLOAT32_OPERATORS = {
    "jax:softmax": "softmax",
    "jax:log_softmax": "log_softmax",
    "jax:logsumexp": "logsumexp",
    "optax:softmax_cross_entropy_with_integer_labels": "cross_entropy",
    "optax:softmax_cross_entropy": "cross_entropy",
    "optax:safe_softmax_cross_entropy": "cross_entropy",
    "optax:sigmoid_binary_cross_entropy": "binary_cross_entropy_with_logits",
    "optax:squared_error": "mse_loss",
    "optax:l2_loss": "mse_loss",
    "optax:huber_loss": "huber_loss",
    "optax:kl_divergence": "kl_div",
}
#: Functions that are one operator in PyTorch: what they compute inside is no arithmetic of the script's.
_WHOLE = frozenset(
    f"jax:{name}"
    for name in "gelu silu swish elu celu selu mish softplus soft_sign hard_tanh hard_sigmoid hard_swish relu relu6 "
    "leaky_relu glu sigmoid log_sigmoid squareplus sparse_plus standardize".split()
)


def float32_operator(equation: Equation) -> str:
    """Returns the name of the softmax or loss that an equation belongs to, the outermost one; empty for none."""
    found = [_FLOAT32_OPERATORS[name] for name in equation.functions if name in _FLOAT32_OPERATORS]
    return found[-1] if found else ""


def is_within_operator(equation: Equation) -> bool:
    """Returns whether an equation is a part of an activation function of JAX's."""
    return any(name in _WHOLE for name in equation.functions)

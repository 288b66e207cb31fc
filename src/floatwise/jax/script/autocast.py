# SPDX-License-Identifier: Apache-2.0
"""Matrix products and convolutions of a script's loss in a plan's format, with every result in its own dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from floatwise.jax.dtypes import jax_dtype
from floatwise.jax.script.trace_equation import Equation
from floatwise.plan import Plan, Policy, match_module

__all__ = ["PRODUCTS", "Autocast"]

#: The primitives that matrix units compute (jax.lax).
PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})


class Autocast:
    """A rule for `floatwise.jax.script.rewriting.rewrite`.

    A product of float32 operands whose module the plan computes in 16 bits is computed there: operands cast, the result
    rounded, and cast back to the dtype that the script's equation has. So nothing around it changes its dtype: norms,
    softmax, losses, parameters, gradients and optimizer states are float32, and no script can fail for a dtype. The
    backward products follow by differentiation: gradients flow back through the casts.

    A product that stays in float32 beside those in 16 bits, an island's, is computed with all its bits where the plan's
    `float32_matmul` is `ieee`: JAX's own default for it is TF32 on NVIDIA GPUs and bfloat16 on TPUs.

    A module is covered by an entry of the plan that covers it or a module around it; the innermost counts, and of
    several entries for one the last. Modules are the names of Flax's and Haiku's modules and of `jax.named_scope`
    around an equation, with or without the model's class in front; where these do not tell (Flax nnx, Equinox, plain
    functions), the path of the parameter that is multiplied, or what is around it in the tree.

    Args:
      plan: The plan.

    Attributes:
      products: How many products were computed in 16 bits, counted while tracing.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.products = 0
        self._matched: set[str] = set()
        self._policy = lru_cache(maxsize=None)(self._policy_of)

    @property
    def unmatched(self) -> list[str]:
        """The plan's globs that have covered nothing."""
        return [entry.module for entry in self.plan.modules if entry.module not in self._matched]

    def __call__(
        self, equation: Equation, operands: Sequence[Any], evaluate: Callable[..., Sequence[Any]]
    ) -> Sequence[Any]:
        """Returns the results of an equation; see `Rule`."""
        policy = self._policy(equation.scopes, equation.parameters)
        if equation.primitive not in PRODUCTS or any(operand.dtype != jnp.float32 for operand in operands):
            return evaluate(*operands)
        if policy.compute_dtype != "float32":
            self.products += 1
            return [_product(equation, operands, jax_dtype(policy.compute_dtype), None)]
        if self.plan.float32_matmul == "ieee":
            return [_product(equation, operands, jnp.float32, (jax.lax.Precision.HIGHEST,) * 2)]
        return evaluate(*operands)

    def _policy_of(self, scopes: tuple[str, ...], parameters: tuple[str | None, ...]) -> Policy:
        for names in _around(scopes, parameters):
            covering = [e for e in self.plan.modules if any(match_module(e.module, name) for name in names)]
            if covering:
                self._matched.update(entry.module for entry in covering)
                return covering[-1].policy
        return self.plan.policy


def _product(equation: Equation, operands: Sequence[Any], dtype: Any, precision: Any) -> Any:
    # An algorithm asked for by the script, such as TF32_TF32_F32, is refused for 16-bit operands.
    params = {**equation.params, "preferred_element_type": dtype, "precision": precision}
    cast = [jax.lax.convert_element_type(operand, dtype) for operand in operands]
    return jax.lax.convert_element_type(equation.traced.primitive.bind(*cast, **params), equation.outputs[0].dtype)


def _around(scopes: tuple[str, ...], parameters: tuple[str | None, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the names of each module around an equation, the innermost first, the outermost of all last."""
    for length in range(len(scopes), 0, -1):
        whole, within_model = ".".join(scopes[:length]), ".".join(scopes[1:length])
        yield (whole, within_model) if within_model else (whole,)
    for parameter in parameters:
        names = (parameter or "").split(".")
        if parameter:
            yield parameter, ".".join(names[:-1]) or parameter
        for length in range(len(names) - 2, 0, -1):
            yield (".".join(names[:length]),)
    yield ("",)

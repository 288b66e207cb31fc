# SPDX-License-Identifier: Apache-2.0
"""What of a plan is applied to a JAX script from outside."""

from __future__ import annotations

from collections.abc import Iterator

from floatwise.errors import PlanError
from floatwise.plan import Plan

__all__ = ["APPLIED_RECIPES", "check_plan"]

#: The recipes that a script trains under as it is.
APPLIED_RECIPES = ("bf16-mixed", "fp16-mixed", "fp32", "tf32")

#: The formats of matrix products and convolutions.
_COMPUTED = frozenset({"float32", "bfloat16", "float16"})


def check_plan(plan: Plan) -> Plan:
    """Returns `plan` when all of it can be applied to an unmodified script.

    Raises:
      PlanError: It asks for float8, for weights stored in 16 bits, or for gradient sums, buffers or outputs in 16 bits.
    """
    fault = next(_unsupported(plan), None)
    if fault:
        what, instead = fault
        applied = ", ".join(APPLIED_RECIPES)
        raise PlanError(
            f"got a plan of recipe {plan.recipe!r} with {what}; applied to a JAX script as it is: {applied}\n{instead}"
        )
    return plan


def _unsupported(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields what of the plan is not applied, and what to use instead."""
    for where, policy in [("", plan.policy), *((f" of {m.module!r}", m.policy) for m in plan.modules)]:
        if policy.compute_dtype not in _COMPUTED:
            yield (
                f"compute_dtype {policy.compute_dtype!r}{where}",
                "use 'bf16-mixed'; for float8 products use flax.linen.Fp8DotGeneral or Qwix in the script",
            )
        if policy.param_dtype != "float32":
            yield f"param_dtype {policy.param_dtype!r}{where}", _weights(plan)
        if policy.output_dtype != "float32":
            yield f"output_dtype {policy.output_dtype!r}{where}", "write output_dtype = 'float32' there"
    for key in ("reduce_dtype", "accumulate_dtype", "buffer_dtype"):
        dtype = getattr(plan.reductions, key)
        if dtype != "float32":
            yield f"reductions.{key} {dtype!r}", f"write {key} = 'float32' in [reductions]"


def _weights(plan: Plan) -> str:
    mixed = "'fp16-mixed'" if plan.compute_dtype == "float16" else "'bf16-mixed'"
    wrapper = {
        "split": "split_master",
        "kahan": "kahan",
        "stochastic": "stochastic_rounding",
    }.get(plan.weights.master, "float32_master")
    return (
        f"use {mixed}; to store the weights in 16 bits change the script: "
        f"floatwise.jax.cast_params(params, plan) and floatwise.jax.{wrapper}(optimizer)"
    )

# SPDX-License-Identifier: Apache-2.0
"""The JAX runtime: a plan applied to pure functions, and what they really compute.

Importing this package loads no framework; its names load JAX when first used, those for optax, Flax and Haiku these.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from floatwise.errors import MissingPackageError

if TYPE_CHECKING:
    from floatwise.jax.casting import cast, cast_params, island
    from floatwise.jax.census import (
        examine_gradients,
        examine_update,
        leaks,
        loss_scaling,
        operator_dtypes,
    )
    from floatwise.jax.finite import all_finite, largest_magnitude, select
    from floatwise.jax.flax_modules import flax_dtypes, linen_apply, set_nnx_dtypes
    from floatwise.jax.gradients import combine, partition, value_and_grad
    from floatwise.jax.haiku_modules import haiku_policies, to_jmp
    from floatwise.jax.loss_scale import LossScale
    from floatwise.jax.optimizer import plan_optimizer
    from floatwise.jax.policy_text import format_policy, parse_policy
    from floatwise.jax.skipping import skip_if_not_finite, skip_report
    from floatwise.jax.updates import apply_updates
    from floatwise.jax.weights import float32_master, kahan, split_master, stochastic_rounding

    probe: Any

__all__ = [
    "LossScale",
    "all_finite",
    "apply_updates",
    "cast",
    "cast_params",
    "combine",
    "examine_gradients",
    "examine_update",
    "flax_dtypes",
    "float32_master",
    "format_policy",
    "haiku_policies",
    "island",
    "kahan",
    "largest_magnitude",
    "leaks",
    "linen_apply",
    "loss_scaling",
    "operator_dtypes",
    "parse_policy",
    "partition",
    "plan_optimizer",
    "probe",
    "select",
    "set_nnx_dtypes",
    "skip_if_not_finite",
    "skip_report",
    "split_master",
    "stochastic_rounding",
    "to_jmp",
    "value_and_grad",
]

#: Modules beside this one; those of other rooms in full.
_WHERE = {
    "LossScale": "loss_scale",
    "all_finite": "finite",
    "apply_updates": "updates",
    "cast": "casting",
    "cast_params": "casting",
    "combine": "gradients",
    "examine_gradients": "census",
    "examine_update": "census",
    "flax_dtypes": "flax_modules",
    "float32_master": "weights",
    "format_policy": "policy_text",
    "haiku_policies": "haiku_modules",
    "island": "casting",
    "kahan": "weights",
    "largest_magnitude": "finite",
    "leaks": "census",
    "linen_apply": "flax_modules",
    "loss_scaling": "census",
    "operator_dtypes": "census",
    "parse_policy": "policy_text",
    "partition": "gradients",
    "plan_optimizer": "optimizer",
    "probe": "floatwise.probe.jax_library",
    "select": "finite",
    "set_nnx_dtypes": "flax_modules",
    "skip_if_not_finite": "skipping",
    "skip_report": "skipping",
    "split_master": "weights",
    "stochastic_rounding": "weights",
    "to_jmp": "haiku_modules",
    "value_and_grad": "gradients",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'floatwise.jax' has no attribute {name!r}")
    try:
        place = _WHERE[name]
        return getattr(importlib.import_module(place if "." in place else f"floatwise.jax.{place}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "jaxlib"):
            raise
        raise MissingPackageError(
            "this needs JAX, which is not installed in this environment: pip install 'floatwise[jax]'"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)

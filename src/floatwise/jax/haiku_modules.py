# SPDX-License-Identifier: Apache-2.0
"""Haiku's policies, which it keeps per class of modules, from a policy or a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import jax.numpy as jnp

from floatwise.errors import MissingPackageError
from floatwise.jax.leaf_formats import LeafFormats
from floatwise.jax.policy_text import PolicyLike

try:
    import haiku
    import jmp  # type: ignore[import-untyped]
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingPackageError(
        "this needs Haiku, which is not installed in this environment: pip install dm-haiku"
    ) from error

__all__ = ["haiku_policies", "to_jmp"]


def to_jmp(policy: PolicyLike, module: str = "") -> Any:
    """Returns a policy as a `jmp.Policy`, of a plan that of the module at `module`.

    Raises:
      PlanError: Arithmetic in float8, which jmp does not know.
    """
    own = LeafFormats(policy).at(module)
    # jmp's own table of names knows these types, not the dtypes made of them.
    return jmp.Policy(*(getattr(jnp, name) for name in (own.param_dtype, own.compute_dtype, own.output_dtype)))


@contextmanager
def haiku_policies(policies: Mapping[type[Any], PolicyLike]) -> Iterator[None]:
    """Sets the policies of Haiku's module classes while the context is open: around `init` and `apply`.

    Unlike `haiku.mixed_precision.set_policy` it leaves the process as it was. A policy holds for the classes named and
    no others, so name the outermost one for the format of the outputs and the norms that stay in float32:

    ```python
    with fw.jax.haiku_policies({Net: "bf16-mixed", hk.LayerNorm: "params=f32,compute=f32,output=bf16"}):
        logits = net.apply(params, None, x)
    ```

    Args:
      policies: A policy, a recipe or a plan for each class.
    """
    with ExitStack() as stack:
        for cls, policy in policies.items():
            stack.enter_context(haiku.mixed_precision.push_policy(cls, to_jmp(policy)))
        yield

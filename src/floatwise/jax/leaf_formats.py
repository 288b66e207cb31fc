# SPDX-License-Identifier: Apache-2.0
"""Which formats a policy or a plan gives to each leaf of a tree of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from floatwise.errors import BadInputError, PlanError, nearest_names
from floatwise.jax.paths import covers, paths_around
from floatwise.jax.policy_text import PolicyLike, as_policy
from floatwise.plan import Plan, Policy, match_module
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.plan.match import check_pattern

__all__ = ["LeafFormats"]

_FLOAT32 = Policy(param_dtype="float32", compute_dtype="float32", output_dtype="float32")


class LeafFormats:
    """The formats in force at a path.

    A leaf that `keep_float32` covers is float32. Else the policy of the nearest module around it that the plan names is
    in force, as in PyTorch's runtime, and else the default one.

    Args:
      policy: A policy's text, a recipe's name, a `Policy` or a `Plan`.
      keep_float32: Globs of what stays in float32; see `floatwise.jax.paths.covers`.

    Raises:
      BadInputError: A glob or the policy's text is malformed.
      UnknownNameError: There is no such format or recipe.
      PlanError: Arithmetic in float8: its operands need scale factors, which no cast of a whole function can give.
    """

    def __init__(self, policy: PolicyLike, keep_float32: Sequence[str] = ()) -> None:
        if isinstance(keep_float32, str):
            raise BadInputError(f"got keep_float32={keep_float32!r}; expected a list of globs: [{keep_float32!r}]")
        for glob in keep_float32:
            check_pattern(glob)
        meant = as_policy(policy)
        self.keep_float32 = tuple(keep_float32)
        self.plan = meant if isinstance(meant, Plan) else None
        self.default = meant.policy if isinstance(meant, Plan) else meant
        if self.default.compute_dtype in FLOAT8_FORMATS:
            raise PlanError(
                f"got {self.default.compute_dtype} as the format of arithmetic, whose operands need scale factors of "
                "their own; write compute=bfloat16 here and give Flax's layers dot_general_cls=Fp8DirectDotGeneralOp"
            )
        self.at = lru_cache(maxsize=4096)(self._at)

    def _at(self, path: str) -> Policy:
        if any(covers(glob, path) for glob in self.keep_float32):
            return _FLOAT32
        for around in paths_around(path):
            for entry in reversed(self.plan.modules if self.plan else ()):
                if match_module(entry.module, around):
                    return entry.policy
        return self.default

    def check_used(self, paths: Iterable[str]) -> None:
        """Raises BadInputError when a glob of `keep_float32` covers none of `paths`."""
        known = list(paths)
        for glob in self.keep_float32:
            if not any(covers(glob, path) for path in known):
                names = sorted({name for path in known for name in path.split(".") if name})
                near = nearest_names(glob.strip("*"), names)
                offer = (
                    f"did you mean {' or '.join(map(repr, near))}?" if near else f"names are {', '.join(names[:24])}"
                )
                raise BadInputError(f"got {glob!r} in keep_float32, which covers no argument's leaf; {offer}")

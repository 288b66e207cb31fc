# SPDX-License-Identifier: Apache-2.0
"""What a Keras script already does about precision: told, and left to the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend import config
from keras.src.dtype_policies import dtype_policy

from floatwise.keras.script.namespaces import in_all_namespaces
from floatwise.tap.frames import users_line
from floatwise.tap.patches import Patches

__all__ = ["replace_policies"]

Tell = Callable[[str, str, str], None]


def replace_policies(patches: Patches, tell: Tell) -> None:
    """Keeps the process' global policy and `floatx` at float32, whatever the script sets.

    Layers then get their variables in float32, and the plan's policies when training starts.

    Args:
      patches: Takes the replacements.
      tell: Gets the kind, `path:line` and what the script asked for.
    """

    def policy(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_dtype_policy(policy: Any) -> Any:
            name = policy if isinstance(policy, str) else getattr(policy, "name", policy)
            where = users_line()
            if where is None or name in ("float32", "float64"):
                return original(policy)
            if where:
                tell("found_dtype_policy", where, f"set_dtype_policy({name!r})")
            return original("float32")

        return set_dtype_policy

    def floatx(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_floatx(value: Any) -> Any:
            if value in ("float16", "bfloat16"):
                tell("found_dtype_policy", users_line() or "", f"set_floatx({value!r})")
                return original("float32")
            return original(value)

        return set_floatx

    in_all_namespaces(patches, dtype_policy.set_dtype_policy, policy)
    in_all_namespaces(patches, config.set_floatx, floatx)
    if config.floatx() in ("float16", "bfloat16"):
        tell("found_dtype_policy", "keras.json", f"floatx {config.floatx()!r}")
        keras.config.set_floatx("float32")

# SPDX-License-Identifier: Apache-2.0
"""A function of Keras replaced under each of its public names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from floatwise.tap.patches import Patches

__all__ = ["in_all_namespaces"]


def in_all_namespaces(patches: Patches, function: Callable[..., Any], make: Callable[[Any], Any]) -> None:
    """Replaces a function of Keras by `make(function)` in every module of Keras that has it.

    Keras shows one function under several public names; modules that are imported later take theirs from the one where
    it is defined.
    """
    made = make(function)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "keras" and module is not None:
            for attribute in [key for key, value in vars(module).items() if value is function]:
                patches.replace(module, attribute, lambda original: made)

# SPDX-License-Identifier: Apache-2.0
"""Packages a subcommand cannot do without."""

from __future__ import annotations

import importlib.util

from floatwise.errors import MissingPackageError

__all__ = ["need_torch"]


def need_torch() -> None:
    """Raises MissingPackageError with what to type when PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingPackageError(
            "this needs PyTorch, which is not installed in this environment: pip install 'floatwise[torch]'\n"
            "(without a GPU, install torch first, from PyTorch's CPU packages: pytorch.org/get-started)"
        )

# SPDX-License-Identifier: Apache-2.0
"""What must be installed for this benchmark, found out before anything of it is imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

__all__ = ["NEEDED", "missing"]

_INSTALL = "pip install {}"

#: Modules that the parts of Floatwise used here import, and how to get each. `typer`, `rich`, `libcst` and the other
#: dependencies of the command line are not among them. transformers is wanted for two models of one part, which are
#: left out without it.
NEEDED: Mapping[str, str] = {
    "torch": "PyTorch 2.6 or newer with CUDA, see pytorch.org/get-started",
    "numpy": _INSTALL.format("numpy"),
    "pydantic": _INSTALL.format("pydantic"),
    "tomli_w": _INSTALL.format("tomli-w"),
    "typing_extensions": _INSTALL.format("typing-extensions"),
    **({"tomli": _INSTALL.format("tomli")} if sys.version_info < (3, 11) else {}),
    "floatwise": "run in the repository's folder: PYTHONPATH=src python -m benchmarks.gpu",
}


def missing(needed: Mapping[str, str] = NEEDED) -> str | None:
    """Returns a sentence that names what is not installed; None when all is there."""
    absent = [f"{name} ({how})" for name, how in needed.items() if find_spec(name) is None]
    if not absent:
        return None
    return f"not installed: {', '.join(absent)}. This benchmark needs it; nothing was run."

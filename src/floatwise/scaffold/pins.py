# SPDX-License-Identifier: Apache-2.0
"""The versions that written projects require: those that they are tested with, as in `constraints.txt`."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PINS"]

PINS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch==2.13.0",),
    "numpy": ("numpy==2.4.6; python_version >= '3.11'", "numpy==2.2.6; python_version < '3.11'"),
    "pillow": ("pillow==12.3.0",),
    "scikit-learn": (
        "scikit-learn==1.9.1; python_version >= '3.11'",
        "scikit-learn==1.7.2; python_version < '3.11'",
    ),
    "transformers": (
        "transformers==5.24.0; python_version >= '3.11'",
        "transformers==5.20.2; python_version < '3.11'",
    ),
    "accelerate": ("accelerate==1.15.0",),
    "lightning": ("lightning==2.6.6",),
    "deepspeed": ("deepspeed==0.19.8",),
    "keras": ("keras==3.15.1",),
    "tensorflow": ("tensorflow==2.21.0",),
    "jax": ("jax==0.10.2",),
    "flax": ("flax==0.12.8",),
    "optax": ("optax==0.2.8",),
    "orbax-checkpoint": ("orbax-checkpoint==0.12.8",),
    "h5py": ("h5py==3.14.0",),
}
"""Lines of a requirements file by package; two where a Python version decides."""

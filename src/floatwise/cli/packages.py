# SPDX-License-Identifier: Apache-2.0
"""Packages a subcommand cannot do without."""

from __future__ import annotations

import importlib.util
from importlib import metadata

from floatwise.errors import BadInputError, MissingPackageError, UnknownNameError
from floatwise.tap.script_framework import FRAMEWORKS, framework_of, keras_backend_of, uses_of

__all__ = ["framework_for"]

#: What Keras 3 trains with; it knows more backends, which only predict (keras/src/backend, 3.15).
_KERAS_BACKENDS = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}


def framework_for(script: str, asked: str | None = None) -> str:
    """Returns what the script trains with: `torch`, `keras` or `jax`, all of which it needs being installed.

    Args:
      script: Path of the script.
      asked: What the user says it trains with; None to read it from the source.

    Raises:
      MissingPackageError: The framework, or Keras' backend, is not installed in this environment.
      UnknownNameError: There is no such framework.
      BadInputError: The script asks for Keras 2, or for a backend that cannot train.
    """
    if asked is not None and asked not in FRAMEWORKS:
        raise UnknownNameError("framework", asked, FRAMEWORKS)
    framework = asked or framework_of(script)
    if framework == "torch":
        _need_torch()
    elif framework == "jax":
        _need_jax(script)
    else:
        _need_keras(script)
    return framework


def _need_torch() -> None:
    if not _is_installed("torch"):
        raise MissingPackageError(
            "this needs PyTorch, which is not installed in this environment: pip install 'floatwise[torch]'\n"
            "(without a GPU, install torch first, from PyTorch's CPU packages: pytorch.org/get-started)"
        )


def _need_jax(script: str) -> None:
    if not _is_installed("jax"):
        raise MissingPackageError(
            f"{script} trains with JAX, which is not installed in this environment: pip install 'floatwise[jax]'\n"
            "(for a GPU: pip install 'jax[cuda12]'; if it trains with something else: --framework torch or keras)"
        )


def _need_keras(script: str) -> None:
    if uses_of(script).legacy_keras:
        raise BadInputError(
            f"{script} asks for Keras 2 (tf_keras, or TF_USE_LEGACY_KERAS); Floatwise plans and runs Keras 3 scripts: "
            "import keras, or tensorflow.keras of TensorFlow 2.16 or newer without TF_USE_LEGACY_KERAS"
        )
    backend = keras_backend_of(script)
    if backend not in _KERAS_BACKENDS:
        raise BadInputError(
            f"{script}: Keras would compute with {backend!r}, which cannot train; allowed: KERAS_BACKEND=tensorflow, "
            "jax or torch"
        )
    if not _is_installed("keras"):
        raise MissingPackageError(
            f"{script} trains with Keras, which is not installed in this environment: pip install 'floatwise[keras]' "
            f"and {backend}"
        )
    version = metadata.version("keras")
    if version.split(".")[0] == "2":
        raise BadInputError(f"{script} trains with Keras; installed is {version}, needed is 3.5 or newer")
    if not _is_installed(_KERAS_BACKENDS[backend]):
        there = [name for name in _KERAS_BACKENDS if _is_installed(name)]
        instead = f"or choose one that is: KERAS_BACKEND={' or '.join(there)}" if there else "or jax, or torch"
        raise MissingPackageError(
            f"{script} trains with Keras on {backend}, which is not installed in this environment: "
            f"pip install {backend}, {instead}"
        )


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

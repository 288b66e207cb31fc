# SPDX-License-Identifier: Apache-2.0
"""Which framework a script trains with, and which backend Keras is to use: read from its source, without running it."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FRAMEWORKS", "Uses", "framework_of", "keras_backend_of", "uses_of"]

FRAMEWORKS = ("torch", "keras", "jax")
#: Packages that a script imports to train with JAX; JAX alone may only prepare data.
_JAX_TRAINERS = frozenset({"flax", "optax", "equinox", "haiku", "jmp", "optimistix", "penzai", "trax"})
#: Names whose use means that gradients are taken there.
_JAX_GRADIENTS = frozenset({"grad", "value_and_grad", "filter_grad", "filter_value_and_grad"})
_TORCH_GRADIENTS = frozenset({"backward"})
#: Parts of Keras that prepare data, in scripts that train with something else.
_KERAS_DATA = frozenset({"utils", "datasets", "preprocessing"})
#: Files of the user's own that are followed from the script at most; a script imports a handful.
_MOST_FILES = 200


@dataclass
class Uses:
    """What a script and the user's own files that it imports name.

    Attributes:
      packages: Top-level packages imported, `tensorflow.keras` as well where TensorFlow's Keras is used.
      keras_parts: Modules and names of Keras that are used (`layers`, `utils`).
      names: Attributes and names used.
      keras_backend: What the script sets `KERAS_BACKEND` to; empty when it does not.
      legacy_keras: Whether it asks for Keras 2 (`tf_keras`, `TF_USE_LEGACY_KERAS`).
    """

    packages: set[str] = field(default_factory=set)
    keras_parts: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    keras_backend: str = ""
    legacy_keras: bool = False


def framework_of(script: str | os.PathLike[str]) -> str:
    """Returns `torch`, `keras` or `jax`: what the script trains with, as far as its source tells.

    A script that imports several is judged by where it takes gradients. One that imports none of them, or cannot be
    read, counts as PyTorch's: running it tells what is wrong with it.
    """
    uses = uses_of(script)
    prepares_data = bool(uses.keras_parts) and uses.keras_parts <= _KERAS_DATA
    if uses.packages & {"keras", "tf_keras", "keras_hub", "keras_cv", "keras_nlp", "tensorflow.keras"}:
        if not prepares_data:
            return "keras"
    if "torch" in uses.packages and uses.names & _TORCH_GRADIENTS:
        return "torch"
    trains_jax = uses.packages & _JAX_TRAINERS or ("jax" in uses.packages and uses.names & _JAX_GRADIENTS)
    if trains_jax:
        return "jax"
    if "tensorflow" in uses.packages and "torch" not in uses.packages:
        return "keras"
    return "jax" if "jax" in uses.packages and "torch" not in uses.packages else "torch"


def keras_backend_of(script: str | os.PathLike[str]) -> str:
    """Returns the backend that Keras would compute with: `tensorflow`, `jax`, `torch` or whatever was asked for.

    In Keras 3's own order (keras/src/backend/config.py, 3.15): the variable KERAS_BACKEND, which the script may set
    itself, then `~/.keras/keras.json` (KERAS_HOME), then TensorFlow.
    """
    uses = uses_of(script)
    asked = uses.keras_backend or os.environ.get("KERAS_BACKEND", "")
    return asked or _configured_backend() or "tensorflow"


def uses_of(script: str | os.PathLike[str]) -> Uses:
    """Returns what the script names, following the modules of its own folder that it imports."""
    uses = Uses()
    waiting = [Path(script)]
    seen: set[Path] = set()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        tree = _parsed(path)
        if tree is not None:
            for node in ast.walk(tree):
                waiting.extend(_note(node, uses, Path(script).parent, path.parent))
    return uses


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _note(node: ast.AST, uses: Uses, root: Path, folder: Path) -> Iterator[Path]:
    """Adds what one node says; yields the user's own files that it imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _imported(alias.name, uses, root)
    elif isinstance(node, ast.ImportFrom):
        base = folder if node.level else root
        for _ in range(node.level - 1):
            base = base.parent
        module = node.module or ""
        if node.level:
            yield from _files(module, base)
        else:
            yield from _imported(module, uses, root)
        for alias in node.names:
            name = f"{module}.{alias.name}".lstrip(".")
            if not node.level:
                _note_package(name, uses)
                _note_keras_part(name, uses)
            uses.names.add(alias.name)
            yield from _files(name, base)
    elif isinstance(node, ast.Attribute):
        uses.names.add(node.attr)
        if node.attr == "keras":
            uses.packages.add("tensorflow.keras")
        owner = node.value
        if getattr(owner, "id", getattr(owner, "attr", "")) == "keras":
            uses.keras_parts.add(node.attr)
    elif isinstance(node, ast.Name):
        uses.names.add(node.id)
    elif isinstance(node, (ast.Assign, ast.Call)):
        _note_environment(node, uses)


def _imported(name: str, uses: Uses, root: Path) -> Iterator[Path]:
    _note_package(name, uses)
    _note_keras_part(name, uses)
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        yield from _files(".".join(parts[:length]), root)


def _note_package(name: str, uses: Uses) -> None:
    uses.packages.add(name.partition(".")[0])
    if name.startswith("tensorflow.keras"):
        uses.packages.add("tensorflow.keras")
    if name.partition(".")[0] == "tf_keras":
        uses.legacy_keras = True


def _note_keras_part(name: str, uses: Uses) -> None:
    parts = name.removeprefix("tensorflow.").split(".")
    if parts[0] == "keras" and len(parts) > 1:
        uses.keras_parts.add(parts[1])


def _files(module: str, root: Path) -> Iterator[Path]:
    stem = root.joinpath(*module.split(".")) if module else root
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            yield path


def _note_environment(node: ast.Assign | ast.Call, uses: Uses) -> None:
    """`os.environ["KERAS_BACKEND"] = "jax"`, `os.environ.setdefault(…)`, `os.putenv(…)`."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        name = target.slice if isinstance(target, ast.Subscript) else None
        value: ast.AST | None = node.value
    else:
        name, value = (node.args[0], node.args[1]) if len(node.args) == 2 else (None, None)
    if isinstance(name, ast.Constant) and isinstance(value, ast.Constant):
        if name.value == "KERAS_BACKEND" and not (_is_default(node) and "KERAS_BACKEND" in os.environ):
            uses.keras_backend = str(value.value)
        elif name.value == "TF_USE_LEGACY_KERAS" and str(value.value).lower() in ("1", "true"):
            uses.legacy_keras = True


def _is_default(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault"


def _configured_backend() -> str:
    home = Path(os.environ["KERAS_HOME"]) if "KERAS_HOME" in os.environ else Path("~/.keras").expanduser()
    try:
        configured = json.loads((home / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    backend = configured.get("backend", "") if isinstance(configured, dict) else ""
    return backend if isinstance(backend, str) else ""

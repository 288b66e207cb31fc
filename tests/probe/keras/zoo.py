# SPDX-License-Identifier: Apache-2.0
"""What the scripts of tests/scripts/keras are, for tests: run on a backend in one process, and what they showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.exporters.running import run_program

from floatwise.probe.recording import Recording, load_recording

__all__ = ["BACKENDS", "LOOPS", "Shown", "run_zoo"]

BACKENDS = ("tensorflow", "jax", "torch")
#: Scripts that choose a backend themselves.
LOOPS = {"tensorflow": "tensorflow_loop", "jax": "jax_loop", "torch": "torch_loop"}
_PROGRAM = (Path(__file__).parent / "program.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Shown:
    """What running one script has shown.

    Attributes:
      messages: What the parent would have been sent.
      alone: The losses that the script writes without Floatwise; empty for scripts that were not compared.
      recording: The recording, where there is one.
    """

    messages: list[dict[str, Any]]
    alone: list[float]
    recording: Recording | None

    @property
    def failure(self) -> str:
        """What the parent was told of a failure."""
        return next((m["message"] for m in self.messages if m["event"] == "failed"), "")


def run_zoo(backend: str, folder: Path, names: tuple[str, ...]) -> Mapping[str, Shown]:
    """Runs scripts in one process, those whose name ends with `+` alone as well."""
    here = Path(__file__).parent
    code = _PROGRAM.replace("Path(__file__).parents[2]", f"Path({str(here.parents[1])!r})")
    environment = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    found = run_program(code, folder, str(folder), *names, **environment)
    shown = {}
    for name, own in found.items():
        file = folder / f"{name}.rec"
        shown[name] = Shown(own["messages"], own.get("alone", []), load_recording(file) if file.exists() else None)
    return shown

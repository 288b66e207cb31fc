# SPDX-License-Identifier: Apache-2.0
"""One part in a process of its own, so that neither a crash nor what it leaves behind reaches the others."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.part import Part
from benchmarks.gpu.parts import PARTS

__all__ = ["main", "run_part"]

Emit = Callable[[dict[str, Any]], None]


def run_part(name: str, part: Part, emit: Emit) -> None:
    """Runs a part and emits its `status`; an error in it is a result, too."""
    if PARTS[name].needs_cuda and part.device != "cuda":
        emit({"event": "status", "value": "needs CUDA"})
        return
    try:
        importlib.import_module(PARTS[name].module).run(part)
        status = "done"
    except Exception as error:
        emit({"event": "error", "value": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"})
        status = "failed"
    emit({"event": "status", "value": status})


def main() -> None:
    """Does as the command line says: part, device, size, seconds. Events go to stdout, all else to stderr."""
    name, device, size, seconds = sys.argv[1:]
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    from benchmarks.gpu.machine import machine, no_cuda

    why = no_cuda() if device == "cuda" else None
    if why is not None:
        emit({"event": "refused", "value": why})
        return
    emit({"event": "machine", "value": machine(device)})
    run_part(name, Part(device, size, float(seconds), emit), emit)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

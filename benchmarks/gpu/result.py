# SPDX-License-Identifier: Apache-2.0
"""What the parts found, as plain data in one JSON file that is whole at any moment."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["SCHEMA_VERSION", "Results", "file_name", "new_part"]

SCHEMA_VERSION = 1

Event = Mapping[str, Any]


def new_part(budget_seconds: float) -> dict[str, Any]:
    """Returns the record of a part that has not begun.

    Keys: `status` (running, done, cut, failed, needs CUDA), `seconds`, `budget_seconds`, `rows` (figures), `checks`
    (what must hold: `what`, `passed`, `detail`), `left_out` (`what`, `why`), `error`.
    """
    return {
        "status": "running",
        "seconds": None,
        "budget_seconds": round(budget_seconds, 1),
        "rows": [],
        "checks": [],
        "left_out": [],
        "error": None,
    }


class Results:
    """All results of one run.

    Args:
      output: The file to keep up to date; a folder to name it after the machine, once that is known; None for no file.
      settings: What the run was asked to do.

    Attributes:
      content: As the file holds it: `schema_version`, `settings`, `machine`, `parts`, `agrees`.
    """

    def __init__(self, output: Path | None, settings: Mapping[str, Any]) -> None:
        self._output = output
        self.content: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "settings": dict(settings),
            "machine": None,
            "parts": {},
            "agrees": None,
        }

    @property
    def path(self) -> Path | None:
        """The file; None while its name is not known."""
        if self._output is None or self._output.suffix == ".json":
            return self._output
        machine = self.content["machine"]
        return None if machine is None else self._output / file_name(machine["device"], machine["torch"])

    def begin(self, part: str, budget_seconds: float) -> None:
        """Notes that a part begins."""
        self.content["parts"][part] = new_part(budget_seconds)

    def take(self, part: str, event: Event) -> None:
        """Takes an event of a part: `machine`, `row`, `check`, `left_out`, `error` or `status`."""
        record, kind, value = self.content["parts"][part], event["event"], event["value"]
        if kind == "machine":
            self.content["machine"] = value
        elif kind in ("row", "check", "left_out"):
            record[{"row": "rows", "check": "checks"}.get(kind, kind)].append(value)
        else:
            record[kind] = value
        self.save()

    def end(self, part: str, seconds: float, status: str | None = None) -> None:
        """Notes that a part is over; `status` stands where the part did not give one of its own."""
        record = self.content["parts"][part]
        record["seconds"] = round(seconds, 1)
        if record["status"] == "running":
            record["status"] = status or "failed"
        self.save()

    def leave_out(self, part: str, why: str) -> None:
        """Notes a part that was not begun."""
        self.content["parts"][part] = {**new_part(0.0), "status": "left out", "seconds": 0.0}
        self.content["parts"][part]["left_out"].append({"what": part, "why": why})
        self.save()

    @property
    def disagreements(self) -> list[str]:
        """What did not hold: failed checks, and parts that failed or showed nothing."""
        found = []
        for name, part in self.content["parts"].items():
            found += [f"{name}: {c['what']}: {c['detail']}" for c in part["checks"] if c["passed"] is False]
            if part["status"] == "failed":
                found.append(f"{name}: failed: {part['error']}")
        return found

    def close(self) -> None:
        """Writes the verdict."""
        self.content["agrees"] = not self.disagreements
        self.save()

    def save(self) -> None:
        """Writes the file whole or not at all."""
        path = self.path
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.content, file, indent=1, ensure_ascii=False, allow_nan=False)
                file.write("\n")
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def file_name(device: str, torch_version: str) -> str:
    """Returns a file's name from a device's and a version: `nvidia-h200-torch2.11.0.json`."""
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return f"{slug}-torch{torch_version.partition('+')[0]}.json"

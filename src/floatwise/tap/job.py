# SPDX-License-Identifier: Apache-2.0
"""What a child process is asked to do with a script, and the messages it sends back. No framework here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """One run of a script in a child process.

    Attributes:
      script: Path of the script, as given.
      arguments: The script's own arguments.
      steps: Iterations after which it stops.
      seed: Set before the script starts, for scripts that set none.
      seed_offset: Added to every seed the script sets; 0 leaves the script's own seeds.
      paced: The parent lets one iteration at a time run.
      scratch: Folder for what the script saves; empty lets it save where it says.
      output: File the child may write its result to; empty when it writes none.
      options: What else the child's room wants to know; JSON values only.
    """

    script: str
    arguments: tuple[str, ...] = ()
    steps: int = 20
    seed: int = 0
    seed_offset: int = 0
    paced: bool = False
    scratch: str = ""
    output: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """Returns the job as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, path: str) -> Job:
        """Reads a job from the file that `dumps` was written to."""
        return cls.loads(Path(path).read_text(encoding="utf-8"))

    @classmethod
    def loads(cls, text: str) -> Job:
        """Reads what `dumps` returned."""
        fields = json.loads(text)
        return cls(**{**fields, "arguments": tuple(fields["arguments"])})

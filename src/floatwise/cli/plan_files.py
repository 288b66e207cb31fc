# SPDX-License-Identifier: Apache-2.0
"""Where `floatwise plan` writes: one plan for each target, one report and one recording."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from floatwise.errors import BadInputError
from floatwise.hardware import Device

__all__ = ["DEFAULT_PLAN", "PlanFiles"]

DEFAULT_PLAN = Path("precision.toml")


@dataclass(frozen=True)
class PlanFiles:
    """The files of one call.

    Attributes:
      plans: One for each target.
      report: The HTML page.
      recording: What was seen.
    """

    plans: tuple[Path, ...]
    report: Path
    recording: Path

    @classmethod
    def choose(
        cls, targets: Sequence[Device | None], output: Path | None, report: Path | None, recording: Path | None
    ) -> PlanFiles:
        """Names the files and checks that they can be written.

        Args:
          targets: What was asked for; None for this machine.
          output: The plan's file, or with several targets the beginning of their names.
          report: The page's file; beside the plan by default.
          recording: A recording that exists, to decide from.

        Raises:
          BadInputError: One cannot be written, or has a misleading name.
        """
        plan = output or DEFAULT_PLAN
        # The plan in force stays when another device is asked about.
        is_other = output is None and recording is not None and targets[0] is not None and plan.exists()
        if len(targets) > 1 or is_other:
            plans = tuple(plan.with_stem(f"{plan.stem}-{t.id if t is not None else 'here'}") for t in targets)
        else:
            plans = (plan,)
        base = plans[0] if is_other and len(plans) == 1 else plan
        files = cls(plans, report or base.with_suffix(".html"), recording or base.with_suffix(".recording"))
        files._check()
        return files

    def _check(self) -> None:
        for plan in self.plans:
            if plan.suffix != ".toml":
                raise BadInputError(f"{plan}: a plan file's name ends in .toml; try -o {plan.with_suffix('.toml')}")
            _check_writable(plan, "-o")
        if self.report.suffix not in (".html", ".htm"):
            raise BadInputError(
                f"{self.report}: a report's name ends in .html; try --report {self.report.with_suffix('.html')}"
            )
        _check_writable(self.report, "--report")
        if self.recording.is_dir():
            raise BadInputError(f"{self.recording}: a folder stands where a file would be written; choose another -o")


def _check_writable(path: Path, option: str) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise BadInputError(f"{path}: its folder does not exist; make it first, or choose another {option}")
    if path.is_dir():
        raise BadInputError(f"{path}: a folder stands where a file would be written; choose another {option}")
    if not os.access(folder, os.W_OK):
        raise BadInputError(f"{path}: no file can be written there; choose another {option}")

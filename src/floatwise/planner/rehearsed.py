# SPDX-License-Identifier: Apache-2.0
"""What rehearsals of a script have shown: kept in its recording, so that every later decision can use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from floatwise.errors import BadFileError, FloatwiseError
from floatwise.plan import dumps_plan, loads_plan
from floatwise.probe.recording import Recording
from floatwise.rehearse.step_record import StepRecord
from floatwise.rehearse.verdict import Verdict

__all__ = ["Rehearsed", "read_rehearsed", "with_rehearsed"]


@dataclass(frozen=True)
class Rehearsed:
    """Float32 runs and rehearsals of one script, with the same steps, seeds and batches.

    Attributes:
      losses: Loss of each step of the float32 run.
      other_losses: The same of further float32 runs.
      spread_source: What those differ by: `seeds` or `permuted_reductions`.
      verdicts: What the rehearsals of a recipe came to, by recipe.
      failures: `path:line: what happened`, by recipe, for those under which the script fails.
      step_records: One recorded step by recipe, float32's under `fp32`.
      impossible: Why the script cannot be rehearsed at all; empty when it can.
    """

    losses: tuple[float, ...] = ()
    other_losses: tuple[tuple[float, ...], ...] = ()
    spread_source: str = "seeds"
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    step_records: Mapping[str, StepRecord] = field(default_factory=dict)
    impossible: str = ""

    def knows(self, recipe: str) -> bool:
        """Returns whether the recipe was rehearsed."""
        return recipe in self.verdicts or recipe in self.failures

    @property
    def seed_losses(self) -> tuple[tuple[float, ...], ...] | None:
        """Losses of float32 runs with other seeds; None when no float32 run was made."""
        if not self.losses:
            return None
        return self.other_losses if self.spread_source == "seeds" else (self.losses,)

    def with_baseline(self, message: Mapping[str, Any]) -> Rehearsed:
        """Adds the float32 runs, from a message of `floatwise.rehearse.judge_child`."""
        return replace(
            self,
            losses=_losses(message["losses"]),
            other_losses=tuple(map(_losses, message["other_losses"])),
            spread_source=str(message["spread_source"]),
            step_records={**self.step_records, **_record("fp32", message.get("step_record"))},
        )

    def with_verdict(self, recipe: str, message: Mapping[str, Any]) -> Rehearsed:
        """Adds a rehearsal, from a message of `floatwise.rehearse.judge_child`."""
        if "failure" in message:
            return replace(self, failures={**self.failures, recipe: str(message["failure"])})
        verdict = Verdict.from_json(loads_plan(message["plan"]), message["verdict"])
        records = {**self.step_records, **_record(recipe, message.get("step_record"))}
        return replace(self, verdicts={**self.verdicts, recipe: verdict}, step_records=records)

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON holds it."""
        rehearsals = {name: {"plan": dumps_plan(v.plan), "verdict": v.to_json()} for name, v in self.verdicts.items()}
        return {
            "losses": list(self.losses),
            "other_losses": [list(losses) for losses in self.other_losses],
            "spread_source": self.spread_source,
            "rehearsals": {**rehearsals, **{name: {"failure": text} for name, text in self.failures.items()}},
            "step_records": {name: record.to_json() for name, record in self.step_records.items()},
            "impossible": self.impossible,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rehearsed:
        """Reads what `to_json` gave."""
        read = cls().with_baseline(values)
        for name, row in values["rehearsals"].items():
            read = read.with_verdict(name, row)
        records = {name: StepRecord.from_json(record) for name, record in values["step_records"].items()}
        return replace(read, step_records=records, impossible=str(values["impossible"]))


def read_rehearsed(recording: Recording, path: str = "the recording") -> Rehearsed:
    """Returns the rehearsals in a recording.

    Args:
      recording: The recording.
      path: Its file, for the error.

    Raises:
      BadFileError: That part of it is damaged.
    """
    if not recording.rehearsed:
        return Rehearsed()
    try:
        return Rehearsed.from_json(recording.rehearsed)
    except (AttributeError, KeyError, TypeError, ValueError, FloatwiseError) as error:
        what = str(error).partition("\n")[0]
        raise BadFileError(
            f"{path}: damaged recording: its rehearsals cannot be read ({what}); record again with "
            "`floatwise plan SCRIPT`"
        ) from error


def with_rehearsed(recording: Recording, rehearsed: Rehearsed) -> Recording:
    """Returns the recording with these rehearsals in place of its own."""
    return replace(recording, rehearsed=rehearsed.to_json())


def _losses(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _record(recipe: str, values: Mapping[str, Any] | None) -> dict[str, StepRecord]:
    return {} if values is None else {recipe: StepRecord.from_json(values)}

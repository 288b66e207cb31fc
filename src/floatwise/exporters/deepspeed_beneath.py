# SPDX-License-Identifier: Apache-2.0
"""The DeepSpeed file that another configuration names: which one, and what is filled into it before DeepSpeed reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from floatwise.exporters.settings import Dotted, Settings
from floatwise.plan.problems import Loc

__all__ = ["Flags", "Named", "accelerate_mode", "filled", "inline_settings", "named_deepspeed", "trainer_flags"]

_TRAINERS = ("TrainingArguments", "Seq2SeqTrainingArguments")


@dataclass(frozen=True)
class Flags:
    """The arguments of Trainer that it compares with a DeepSpeed file.

    Attributes:
      fp16: Whether fp16 is true.
      bf16: Whether bf16 is true.
      fp16_full_eval: Whether fp16_full_eval is true.
      bf16_full_eval: Whether bf16_full_eval is true.
      loc: The table or call they are in.
    """

    fp16: bool
    bf16: bool
    fp16_full_eval: bool
    bf16_full_eval: bool
    loc: Loc

    @property
    def mode(self) -> str:
        """The value of Accelerate's mixed_precision that Trainer passes on; `no` when neither is true."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "no"

    def value(self, table: str) -> bool:
        """Returns what Trainer fills into `fp16.enabled` or `bf16.enabled`, and compares with it.

        Source: transformers/integrations/deepspeed.py `trainer_config_process`, 5.24.0.
        """
        return (self.fp16 or self.fp16_full_eval) if table == "fp16" else (self.bf16 or self.bf16_full_eval)


@dataclass(frozen=True)
class Named:
    """A DeepSpeed configuration that another configuration names.

    Attributes:
      value: A path as written, or a table.
      loc: Where it is named.
    """

    value: str | Mapping[str, Any]
    loc: Loc


def named_deepspeed(system: str, settings: Settings) -> Named | None:
    """Returns what DeepSpeed configuration `settings` of Trainer or Accelerate name; None when they name none."""
    if system == "transformers":
        values, loc = _arguments(settings)
        return _named(values.get("deepspeed"), (*loc, "deepspeed"))
    if system == "accelerate" and settings.form != "python":
        loc = ("deepspeed_config", "deepspeed_config_file")
        return _named(settings.get(*loc), loc)
    if system == "accelerate":
        plugin = settings.call("DeepSpeedPlugin")
        return _named(plugin.kwargs.get("hf_ds_config"), ("DeepSpeedPlugin", "hf_ds_config")) if plugin else None
    return None


def trainer_flags(settings: Settings) -> Flags:
    """Returns the precision arguments of TrainingArguments."""
    values, loc = _arguments(settings)
    on = {name: values.get(name) is True for name in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval")}
    return Flags(**on, loc=loc)


def accelerate_mode(settings: Settings) -> tuple[str, Loc]:
    """Returns the mixed_precision of Accelerate's configuration, `no` where it is not written, and where it stands."""
    if settings.form == "python":
        call = settings.call("Accelerator")
        given = call.kwargs.get("mixed_precision") if call else None
        known = isinstance(given, str) and not isinstance(given, Dotted)
        return (str(given) if known else "no"), ("Accelerator", "mixed_precision")
    if settings.get("mixed_precision"):
        return str(settings.get("mixed_precision")).lower(), ("mixed_precision",)
    return ("fp16", ("fp16",)) if settings.get("fp16") is True else ("no", ())


def inline_settings(settings: Settings, named: Named) -> Settings:
    """Returns a DeepSpeed table that stands in another file as settings of its own, with the lines of that file."""
    depth = len(named.loc)
    lines = {loc[depth:]: line for loc, line in settings.lines.items() if loc[:depth] == named.loc and len(loc) > depth}
    first = settings.line(named.loc)
    assert isinstance(named.value, Mapping)
    lines = {(key,): first for key in named.value} | lines
    return Settings(named.value, lines, settings.source, "json", files=settings.files)


def filled(settings: Settings, mode: str, flags: Flags | None, beneath: str) -> Settings:
    """Returns a DeepSpeed file as DeepSpeed gets it from Trainer or Accelerate.

    "auto" of the precision tables becomes what the arguments say, and the table of the mode is added where it is not
    there (accelerate/utils/dataclasses.py `DeepSpeedPlugin.set_mixed_precision`, 1.15.0).

    Args:
      settings: The file.
      mode: `no`, `fp16`, `bf16` or `fp8`.
      flags: Trainer's arguments; None without Trainer.
      beneath: Who reads the file: "Trainer" or "Accelerate".
    """
    values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.values.items()}
    on = {"fp16": mode == "fp16", "bf16": mode in ("bf16", "fp8")}
    for table, is_on in on.items():
        entry = values.get(table)
        if isinstance(entry, dict) and entry.get("enabled") == "auto":
            entry["enabled"] = flags.value(table) if flags else is_on
        elif entry is None and is_on and not (table == "bf16" and "bfloat16" in values):
            values[table] = {"enabled": True, "auto_cast": True} if table == "fp16" else {"enabled": True}
    return replace(settings, values=values, beneath=beneath)


def _arguments(settings: Settings) -> tuple[Mapping[str, Any], Loc]:
    if settings.form != "python":
        return settings.values, ()
    call = next((call for name in _TRAINERS if (call := settings.call(name))), None)
    return (call.kwargs, (call.name,)) if call else ({}, ())


def _named(value: Any, loc: Loc) -> Named | None:
    is_path = isinstance(value, str) and not isinstance(value, Dotted) and value not in ("", "none")
    return Named(value, loc) if is_path or (isinstance(value, Mapping) and value) else None

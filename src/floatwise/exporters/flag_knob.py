# SPDX-License-Identifier: Apache-2.0
"""Keys that are given as command-line flags, whose values are texts until their type is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from floatwise.exporters.knob import Knob
from floatwise.exporters.settings import UNKNOWN, Settings

__all__ = ["FlagKnob", "flag_text", "flag_value", "flag_values", "typed_flags"]

_TRUE = frozenset({"yes", "true", "t", "y", "1"})
_FALSE = frozenset({"no", "false", "f", "n", "0"})
_SWITCH_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "0", "1"})


@dataclass(frozen=True, kw_only=True)
class FlagKnob(Knob):
    """A `Knob` of a flag: numbers are read from their texts first, and a switch takes no value."""

    def fault(self, value: Any) -> str | None:
        """Returns what is wrong with the text of a flag; None when nothing is."""
        read = flag_value(self, value)
        if self.kind == "bool" and isinstance(read, str):
            return f'got "{read}", expected nothing: this flag is a switch, and its presence turns it on'
        return super().fault(read)


def flag_value(knob: Knob, value: Any) -> Any:
    """Returns a flag's value in its type; the text itself where it is not of that type.

    A word behind a switch belongs to something else, as `)` does at the end of a shell list, unless it is one that
    people write for true or false. A variable of the shell is known only when run.
    """
    if not isinstance(value, str):
        return value
    if knob.kind == "bool":
        return value if value.casefold() in _SWITCH_WORDS else True
    if "$" in value:
        return UNKNOWN
    if knob.kind in ("int", "float"):
        try:
            return int(value) if knob.kind == "int" else float(value)
        except ValueError:
            return value
    return value


def flag_values(values: Mapping[str, Any], knobs: Mapping[str, Knob]) -> dict[str, Any]:
    """Returns the values that there are rows for, in their types; those known only when run are left out."""
    read = {name: flag_value(knobs[name], value) for name, value in values.items() if name in knobs}
    return {name: value for name, value in read.items() if value is not UNKNOWN}


def typed_flags(settings: Settings, knobs: Mapping[str, Knob]) -> Settings:
    """Returns flags of a system that is configured by values as those values: `--bf16 True` as true.

    The words are those of `transformers.hf_argparser.string_to_bool`, 5.24.0.
    """
    values = {name: _typed(knobs[name], value) if name in knobs else value for name, value in settings.values.items()}
    return replace(settings, values=values)


def _typed(knob: Knob, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if knob.kind == "bool" and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    return UNKNOWN if "$" in value else value


def flag_text(value: float) -> float | int:
    """Returns a number as people write it behind a flag: without a fraction where it has none."""
    return int(value) if value == int(value) and abs(value) < 2**53 else value

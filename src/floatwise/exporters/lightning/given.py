# SPDX-License-Identifier: Apache-2.0
"""What a Trainer or Fabric is given, from Python source or from the YAML of LightningCLI, in one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatwise.exporters.lightning.strategies import PRECISION_PLUGINS
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.plan.problems import Loc, Problem

__all__ = ["Given", "given_in", "is_named_lightning", "trainer_call"]

_NAMES = ("Trainer", "Fabric")
_ROOTS = ("L", "pl", "lightning", "pytorch_lightning", "lightning_fabric")


@dataclass(frozen=True)
class Given:
    """The arguments that decide precision.

    Attributes:
      values: Arguments by name; classes with their arguments as calls, also those of YAML.
      loc: Where they stand: `("trainer",)` in YAML, the name of the call in Python.
      is_fabric: True for Fabric.
      settings: Where they were read.
    """

    values: Mapping[str, Any]
    loc: Loc
    is_fabric: bool
    settings: Settings

    def resolved(self, value: Any) -> Any:
        """Returns the call that a variable was assigned; any other value as it is."""
        if isinstance(value, Dotted):
            return next((call for call in self.settings.calls if call.assigned == value), value)
        return value

    @property
    def plugin(self) -> Call | None:
        """The precision plugin among `plugins`; None without one."""
        return next((call for _, call in self._plugins() if call.name in PRECISION_PLUGINS), None)

    @property
    def plugin_variable(self) -> str:
        """The variable that the precision plugin was assigned to; empty when it was not."""
        rows = ((value, call) for value, call in self._plugins() if call.name in PRECISION_PLUGINS)
        return next((str(value) if isinstance(value, Dotted) else call.assigned for value, call in rows), "")

    @property
    def strategy(self) -> Any:
        """The strategy: a text, a call, or something that only running would tell."""
        return self.resolved(self.values.get("strategy", "auto"))

    def _plugins(self) -> list[tuple[Any, Call]]:
        given = self.values.get("plugins")
        rows = given if isinstance(given, list) else [given]
        found = [(value, self.resolved(value)) for value in rows]
        return [(value, call) for value, call in found if isinstance(call, Call)]


def trainer_call(settings: Settings) -> Call | None:
    """Returns the first call of Trainer or Fabric; None without one."""
    return next((call for call in settings.calls if call.name in _NAMES), None)


def given_in(settings: Settings) -> Given:
    """Returns the arguments.

    Raises:
      SettingsProblems: The source has no such call, or the file no table `trainer`.
    """
    if settings.form == "yaml":
        table = settings.get("trainer")
        if not isinstance(table, Mapping):
            raise SettingsProblems([Problem((), "there is no table `trainer` in this file")])
        return Given({name: _as_call(value) for name, value in table.items()}, ("trainer",), False, settings)
    call = trainer_call(settings)
    if call is None:
        raise SettingsProblems([Problem((), "there is no call of Trainer(...) or Fabric(...) in this source")])
    return Given(call.kwargs, (call.name,), call.name == "Fabric", settings)


def is_named_lightning(call: Call) -> bool:
    """Returns whether a call is written with one of Lightning's usual module names, as in `L.Trainer`."""
    return call.dotted.partition(".")[0] in _ROOTS


def _as_call(value: Any) -> Any:
    """Returns jsonargparse's `class_path` and `init_args` as a call."""
    if isinstance(value, list):
        return [_as_call(item) for item in value]
    if isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
        arguments = value.get("init_args")
        kwargs = {name: _as_call(item) for name, item in arguments.items()} if isinstance(arguments, Mapping) else {}
        path = value["class_path"]
        return Call(path.rpartition(".")[2], (), kwargs, 0, path)
    return value

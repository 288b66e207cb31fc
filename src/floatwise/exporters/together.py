# SPDX-License-Identifier: Apache-2.0
"""Several configuration files of one training: read as the systems read them together, and held against each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from floatwise.errors import BadFileError, UnknownNameError
from floatwise.exporters.deepspeed_beneath import (
    Named,
    accelerate_mode,
    filled,
    inline_settings,
    named_deepspeed,
    trainer_flags,
)
from floatwise.exporters.export import version_for
from floatwise.exporters.read import load_settings, read_settings, recognise
from floatwise.exporters.settings import Settings
from floatwise.exporters.system import Finding, Reading, System
from floatwise.exporters.together_checks import Conflict, Files, conflicts_of
from floatwise.plan.problems import Problem

__all__ = ["Conflict", "Part", "check_together", "load_together"]

Part: TypeAlias = tuple[System, Settings, Reading]
"""A configuration of one training: whose it is, as written, and what it means beside the others."""

# The order in which they decide: Trainer's arguments win over Accelerate's file, and a DeepSpeed file over both.
_ORDER = ("accelerate", "transformers", "deepspeed")
_TITLES = {"transformers": "Trainer", "accelerate": "Accelerate"}


def load_together(
    paths: Sequence[str | os.PathLike[str]],
    systems: Mapping[str, System],
    versions: Mapping[str, str] | None = None,
    from_system: str | None = None,
) -> list[Part]:
    """Returns what the configuration files of one training mean together; the last part decides the formats.

    A DeepSpeed file that Trainer's arguments or Accelerate's configuration name is read as well: looked for in the
    folder of the file that names it, then in the working directory. It, and one that is given beside them, is read
    with "auto" filled in. Findings of files that disagree join those of the file to blame.

    Args:
      paths: The files.
      systems: The systems by name.
      versions: The version to read as, by system; the installed one where none is named.
      from_system: Whose the first file is; None to go by its content.

    Raises:
      BadFileError: Files cannot be read, or values are wrong or contradict each other; one line for each, with its
        file and line.
      UnknownNameError: There is no system `from_system`.
    """
    if from_system is not None and from_system not in systems:
        raise UnknownNameError("system", from_system, systems)
    loaded, faults = _loaded(paths, systems, from_system)
    files, written = _beneath(loaded, systems, faults)
    parts: list[Part] = []
    for system, settings in sorted(written, key=lambda pair: _rank(pair[0])):
        try:
            version = version_for(system, (versions or {}).get(system.name))
            parts.append((system, settings, read_settings(_effective(system, settings, files), system, version)))
        except BadFileError as error:
            faults.append(str(error))
    conflicts = conflicts_of(files)
    for conflict in conflicts:
        if isinstance(conflict.what, Problem):
            faults.append(str(conflict.settings.bad_file([conflict.what])))
    if faults:
        raise BadFileError("\n".join(dict.fromkeys(faults)))
    return [_with_findings(part, conflicts) for part in _precision_passed_on(parts)]


def check_together(parts: Sequence[Part]) -> Sequence[Conflict]:
    """Returns what configurations of one training contradict each other in.

    A DeepSpeed file counts as part of Trainer's or Accelerate's when its `Settings.beneath` says so.
    """
    by_name = {system.name: settings for system, settings, _ in parts if system.name in _TITLES}
    deepspeed = next((s for system, s, _ in parts if system.name == "deepspeed" and s.beneath), None)
    return conflicts_of(Files(by_name.get("transformers"), by_name.get("accelerate"), deepspeed))


@dataclass(frozen=True)
class _Owner:
    system: System
    settings: Settings
    named: Named | None


def _loaded(
    paths: Sequence[str | os.PathLike[str]], systems: Mapping[str, System], from_system: str | None
) -> tuple[list[tuple[System, Settings]], list[str]]:
    loaded: list[tuple[System, Settings]] = []
    faults: list[str] = []
    for index, path in enumerate(paths):
        try:
            settings = load_settings(path)
            known = systems[from_system] if from_system and index == 0 else None
            if known and settings.form not in (*known.forms, "flags"):
                forms = " or ".join(known.forms)
                raise BadFileError(f"{path}:1: got {settings.form}; {known.title} is configured in {forms}")
            loaded.append((known or recognise(settings, systems.values()), settings))
        except BadFileError as error:
            faults.append(str(error))
    return loaded, faults


def _beneath(
    loaded: list[tuple[System, Settings]], systems: Mapping[str, System], faults: list[str]
) -> tuple[Files, list[tuple[System, Settings]]]:
    """Returns the files by their systems, and all of them with the DeepSpeed file marked as part of another."""
    by_name = {system.name: (system, settings) for system, settings in reversed(loaded) if system.name in _TITLES}
    trainer, accelerate = by_name.get("transformers"), by_name.get("accelerate")
    # Where both name one, Trainer's is taken (transformers/training_args.py, 5.24.0).
    owners = [_Owner(*pair, named_deepspeed(pair[0].name, pair[1])) for pair in (trainer, accelerate) if pair]
    owner = next((owner for owner in owners if owner.named), owners[0] if owners else None)
    rest = [(system, settings) for system, settings in loaded if system.name != "deepspeed"]
    given = [(system, settings) for system, settings in loaded if system.name == "deepspeed"]
    deepspeed = None
    if owner is not None and "deepspeed" in systems:
        deepspeed = _deepspeed_of(owner, [settings for _, settings in given], faults)
        if deepspeed is not None:
            deepspeed = replace(deepspeed, beneath=_TITLES[owners[0].system.name])
            given = [(system, settings) for system, settings in given if not _same(settings, deepspeed)]
            rest.append((systems["deepspeed"], deepspeed))
    files = Files(trainer[1] if trainer else None, accelerate[1] if accelerate else None, deepspeed)
    return files, [*given, *rest]


def _deepspeed_of(owner: _Owner, given: list[Settings], faults: list[str]) -> Settings | None:
    """Returns the DeepSpeed configuration that `owner` trains with; None when it has none."""
    named = owner.named
    if named is None:
        return given[0] if given else None
    if isinstance(named.value, Mapping):
        return inline_settings(owner.settings, named)
    folders = dict.fromkeys((Path(owner.settings.files or "."), Path(".")))
    found = next((path for folder in folders if _is_file(path := folder / named.value)), None)
    if found is None:
        where = " or ".join(str(folder) for folder in folders)
        text = f"names the DeepSpeed file {named.value}, which is not in {where}"
        faults.append(str(owner.settings.bad_file([Problem(named.loc, text)])))
        return None
    same = next((settings for settings in given if Path(settings.source).resolve() == found.resolve()), None)
    if same is not None:
        return same
    try:
        return load_settings(found, "json")
    except BadFileError as error:
        faults.append(str(error))
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _same(a: Settings, b: Settings) -> bool:
    return a.source == b.source


def _effective(system: System, settings: Settings, files: Files) -> Settings:
    """Returns settings with what other files fill into them."""
    if system.name != "deepspeed" or not settings.beneath:
        return settings
    flags = trainer_flags(files.trainer) if files.trainer else None
    mode = flags.mode if flags else "no"
    if mode == "no" and files.accelerate is not None:
        mode = accelerate_mode(files.accelerate)[0]
    return filled(settings, mode, flags, settings.beneath)


def _precision_passed_on(parts: list[Part]) -> list[Part]:
    """Trainer without fp16 and bf16 trains as Accelerate's file says."""
    launcher = next((p for p in parts if p[0].name == "accelerate" and p[1].form != "python"), None)
    if launcher is None:
        return parts
    return [
        (system, settings, replace(reading, plan=launcher[2].plan))
        if system.name == "transformers" and trainer_flags(settings).mode == "no"
        else (system, settings, reading)
        for system, settings, reading in parts
    ]


def _with_findings(part: Part, conflicts: Sequence[Conflict]) -> Part:
    system, settings, reading = part
    found = [c.what for c in conflicts if isinstance(c.what, Finding) and c.settings is settings]
    return system, settings, replace(reading, findings=(*reading.findings, *found))


def _rank(system: System) -> int:
    return _ORDER.index(system.name) if system.name in _ORDER else -1

# SPDX-License-Identifier: Apache-2.0
"""Long lists of module paths in few lines: `layers.0.norm` and `layers.1.norm` are `layers.{0,1}.norm`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Folded", "fold_paths"]

# Whole numbers without leading zeros, so that paths can be written back; no list of modules needs ten digits.
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,8})(?![0-9])")

# Text at even positions, numbers at odd ones, as `re.split` with one group yields them.
_Tokens = tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True)
class Folded:
    """One pattern in shell brace notation and the paths it stands for: those, and no others."""

    pattern: str
    paths: tuple[str, ...]


def fold_paths(paths: Iterable[str]) -> list[Folded]:
    """Returns the fewest-looking patterns that stand for exactly `paths`, in order of first appearance."""
    groups: dict[_Tokens, tuple[str, ...]] = {_tokens(path): (path,) for path in paths}
    longest = max((len(tokens) for tokens in groups), default=0)
    # From the left: the first number is the layer's, the one that repeats most.
    for position in range(1, longest, 2):
        groups = _merged(groups, position)
    return [Folded(_pattern(tokens), members) for tokens, members in groups.items()]


def _tokens(path: str) -> _Tokens:
    return tuple((int(part),) if index % 2 else part for index, part in enumerate(_NUMBER.split(path)))


def _merged(groups: dict[_Tokens, tuple[str, ...]], position: int) -> dict[_Tokens, tuple[str, ...]]:
    """Merges the groups that differ in nothing but the numbers at `position`."""
    alike: dict[tuple[_Tokens, _Tokens], list[tuple[_Tokens, tuple[str, ...]]]] = {}
    for tokens, members in groups.items():
        alike.setdefault((tokens[:position], tokens[position + 1 :]), []).append((tokens, members))
    merged: dict[_Tokens, tuple[str, ...]] = {}
    for (before, after), found in alike.items():
        numbers = sorted({n for tokens, _ in found for n in _numbers(tokens, position)})
        middle: _Tokens = (tuple(numbers),) if numbers else found[0][0][position : position + 1]
        merged[before + middle + after] = tuple(path for _, members in found for path in members)
    return merged


def _numbers(tokens: _Tokens, position: int) -> tuple[int, ...]:
    token = tokens[position] if position < len(tokens) else ()
    return token if isinstance(token, tuple) else ()


def _pattern(tokens: _Tokens) -> str:
    return "".join(token if isinstance(token, str) else _braces(token) for token in tokens)


def _braces(numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ",".join(_run(run) for run in runs) + "}"


def _run(run: list[int]) -> str:
    return f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run))

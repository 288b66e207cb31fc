# SPDX-License-Identifier: Apache-2.0
"""Every exception Floatwise raises on purpose.

```
FloatwiseError                 what was got, what is allowed, what to do next
├── UnknownNameError           a format, device, recipe, … that no row has  (also a ValueError)
├── BadFileError               a plan or recording that cannot be read      (also a ValueError)
├── PlanError                  a plan that contradicts itself, or that this runtime cannot apply (also a ValueError)
├── BadInputError              an argument or tensor outside what is allowed (also a ValueError)
├── MissingPackageError        a package that is needed and not installed   (also an ImportError)
├── NonFiniteGradientsError    training that cannot go on: every step is skipped (also a FloatingPointError)
└── ScriptError                the user's script failed, or never trained
```

The command line prints `str(error)` without a traceback and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BadFileError",
    "BadInputError",
    "FloatwiseError",
    "MissingPackageError",
    "NonFiniteGradientsError",
    "PlanError",
    "ScriptError",
    "UnknownNameError",
    "nearest_names",
]


class FloatwiseError(Exception):
    """Base of all errors raised on purpose; the message is written for the person at the terminal."""


class UnknownNameError(FloatwiseError, ValueError):
    """A name that no row has.

    Args:
      kind: What was looked for, singular, lower case ("device").
      name: What was given.
      known: Every legal name.
      hint: What to do next; the default names the nearest legal names.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str | None = None) -> None:
        legal = sorted(known)
        near = nearest_names(name, legal)
        self.name, self.nearest = name, near
        lines = [f"unknown {kind} {name!r}"]
        if near:
            lines.append(f"did you mean {' or '.join(repr(n) for n in near)}?")
        lines.append(f"known: {_listed(legal)}")
        if hint:
            lines.append(hint)
        super().__init__("\n".join(lines))


class BadFileError(FloatwiseError, ValueError):
    """A file that cannot be read as what it should be; the message begins with `path:line:`."""


class PlanError(FloatwiseError, ValueError):
    """A plan that contradicts itself, or that asks for what this runtime cannot do."""


class BadInputError(FloatwiseError, ValueError):
    """An argument or a tensor outside what is allowed."""


class MissingPackageError(FloatwiseError, ImportError):
    """A package that is needed here and not installed; the message says how to install it."""


class NonFiniteGradientsError(FloatwiseError, FloatingPointError):
    """Step after step is skipped because gradients are not finite; the weights are as after the last good step.

    Attributes:
      gradients: The parameters whose gradients are not finite, as `floatwise.torch` describes them.
      consecutive_skips: How many steps in a row were skipped.
    """

    def __init__(self, message: str, gradients: Iterable[object] = (), consecutive_skips: int = 0) -> None:
        self.gradients, self.consecutive_skips = tuple(gradients), consecutive_skips
        super().__init__(message)


class ScriptError(FloatwiseError):
    """The user's script failed or never reached a training step.

    Args:
      message: What happened and what to do next.
      traceback: The script's own traceback, trimmed to the user's frames; empty when it did not raise.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)


def _listed(names: list[str], most: int = 24) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{len(names)} names, such as {', '.join(names[:: len(names) // 8])}"


def nearest_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Returns the legal names most like `name`, best first, compared without case."""
    by_folded = {k.casefold(): k for k in known}
    folded = name.casefold()
    near = difflib.get_close_matches(folded, by_folded, n=most, cutoff=0.6)
    # A part of a name is like it, too: fp8 is no typing error for float8_e4m3fn, but it is meant.
    near += [k for k in by_folded if len(folded) > 2 and folded in k and k not in near]
    return [by_folded[k] for k in near[:most]]

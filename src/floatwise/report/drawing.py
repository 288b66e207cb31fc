# SPDX-License-Identifier: Apache-2.0
"""Figures as the page holds them: JSON that cannot leave its element, and a legend in HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from floatwise.planner.decision_json import json_value

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["Drawing", "Key", "drawings_json"]


@dataclass(frozen=True)
class Key:
    """One entry of a legend.

    Attributes:
      name: What is drawn so.
      colour: As the page's style sheet names it, `var(--ink)`.
      mark: How it looks there: `box`, `line`, `thick`, `dashes`, `dots`, `dot`, `ring`, `tick`, `cross`,
        `diamond`, `range` (two shades) or `heat` (the colours of shares).
    """

    name: str
    colour: str
    mark: str = "box"


@dataclass(frozen=True)
class Drawing:
    """A figure and what belongs to it on the page.

    Attributes:
      name: Unique on the page; letters, digits and hyphens.
      figure: What Plotly draws.
      says: What it shows, in a sentence, for those who do not see it.
      keys: Its legend.
    """

    name: str
    figure: go.Figure
    says: str
    keys: tuple[Key, ...] = ()

    @property
    def height(self) -> int:
        """Pixels that it takes, so that the page does not jump when it is drawn."""
        return int(self.figure.layout.height)


def drawings_json(drawings: Iterable[Drawing]) -> str:
    """Returns all figures as one JSON object, safe inside a script element; null stands for what is not finite."""
    plain = {drawing.name: json_value(drawing.figure.to_plotly_json()) for drawing in drawings}
    text = json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

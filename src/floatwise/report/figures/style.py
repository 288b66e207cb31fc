# SPDX-License-Identifier: Apache-2.0
"""What all figures have in common: colours by the page's names, fonts, axes, and the two widths they are made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from floatwise.report.figures.text import shortened, width_of

__all__ = [
    "FLOAT32",
    "HEAT",
    "SERIES",
    "axis",
    "blank",
    "names_axis",
    "narrow",
    "series_colours",
    "tick_axis",
]

FLOAT32 = "var(--plain-line)"
#: One for each recipe; told apart by people with any of the usual colour deficiencies, beside the grey of float32.
SERIES = tuple(f"var(--series-{number})" for number in range(1, 7))
#: From a small share to a large one, equal steps in lightness.
HEAT = tuple([index / 4, f"var(--heat-{index})"] for index in range(5))

_SMALL_PX = 12
_NAME_PX = 11
# Widest names in columns, on a wide page and on a phone, and pixels of a column: a monospaced digit is 0.6 em wide.
_WIDE_COLUMNS, _NARROW_COLUMNS = 36, 17
_COLUMN_PX = 0.6 * _NAME_PX
_NAME_GAP_PX = 14


def series_colours(names: Sequence[str]) -> dict[str, str]:
    """Returns a colour for each name, in order; beyond the sixth they repeat."""
    return {name: SERIES[index % len(SERIES)] for index, name in enumerate(dict.fromkeys(names))}


def blank(height: float, **margins: float) -> go.Figure:
    """Returns an empty figure.

    Args:
      height: In CSS pixels, margins included.
      **margins: `l`, `r`, `t` and `b`, in CSS pixels; 0 where not given but for 14 on the right, for half a
        tick label, and 8 at the top.
    """
    figure = go.Figure()
    figure.update_layout(
        template=go.layout.Template(),
        height=round(height),
        margin={"l": 0, "r": 14, "t": 8, "b": 0, "pad": 0, **margins},
        font={"color": "var(--soft)", "size": _SMALL_PX, "family": "var(--sans)"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"bgcolor": "var(--panel)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
        hovermode="closest",
        showlegend=False,
        dragmode=False,
        meta={"narrow": {}},
    )
    return figure


def axis(**changes: Any) -> dict[str, Any]:
    """Returns an axis in the house style, which cannot be dragged: a page has to scroll under a finger."""
    return {
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "showline": False,
        "gridcolor": "var(--line)",
        "linecolor": "var(--plain-line)",
        "tickcolor": "var(--plain-line)",
        "automargin": False,
        **changes,
    }


def tick_axis(values: Sequence[float], words: Sequence[str], **changes: Any) -> dict[str, Any]:
    """Returns an axis whose ticks and their words are given."""
    return axis(tickmode="array", tickvals=list(values), ticktext=list(words), **changes)


def names_axis(
    figure: go.Figure, key: str, names: Sequence[str], *, below: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """Returns a vertical axis of names at 0, 1, … from the top, and makes room for them on the left.

    Args:
      figure: Whose left margin grows where the names need it, on wide and on narrow pages.
      key: The axis in the layout: `yaxis`, `yaxis2`.
      names: As they are in the script; shortened here.
      below: A second line for each name.
      **changes: What else the axis has.
    """
    longest = max(map(width_of, (*names, *below)), default=0)
    wide = round(min(longest, _WIDE_COLUMNS) * _COLUMN_PX) + _NAME_GAP_PX
    small = round(min(longest, _NARROW_COLUMNS) * _COLUMN_PX) + _NAME_GAP_PX
    figure.layout.margin.l = max(figure.layout.margin.l or 0, wide)
    meta = figure.layout.meta["narrow"]
    narrow(
        figure,
        {
            "margin.l": max(meta.get("margin.l", 0), small),
            f"{key}.ticktext": _lines(names, below, _NARROW_COLUMNS),
        },
    )
    words = _lines(names, below, _WIDE_COLUMNS)
    font = {"family": "var(--mono)", "size": _NAME_PX}
    whole = [len(names) - 0.5, -0.5]
    fixed = {"range": whole, "ticks": "", "tickfont": font, "ticklabelstandoff": 5}
    return tick_axis(range(len(names)), words, **{**fixed, **changes})


def _lines(names: Sequence[str], below: Sequence[str], most: int) -> list[str]:
    above = [shortened(name, most) for name in names]
    if not below:
        return above
    return [f"{first}<br>{shortened(second, most)}" for first, second in zip(above, below, strict=True)]


def narrow(figure: go.Figure, changes: Mapping[str, Any]) -> None:
    """Says what is different on a narrow page: values by their dotted place in the layout."""
    figure.layout.meta = {"narrow": {**figure.layout.meta["narrow"], **changes}}

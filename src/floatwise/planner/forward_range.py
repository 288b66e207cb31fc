# SPDX-License-Identifier: Apache-2.0
"""Does what enters and leaves the matrix products fit float16, and which modules must stay float32 if not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from floatwise.formats import get_format
from floatwise.planner.decision import Island
from floatwise.planner.numbers import magnitude
from floatwise.planner.reasons import Reason
from floatwise.probe.recording import Recording, Site

__all__ = ["ForwardRange", "arithmetic_sites", "covered", "forward_islands", "forward_range", "island_share"]

#: Bits between the largest value seen and float16's limit below which a module becomes an island. A judgement:
#: activations of healthy models grow by a few bits over a training run, and the probe sees its first steps.
MARGIN_BITS = 3

_ROLES_ZH = {"input": "输入", "output": "输出"}


@dataclass(frozen=True)
class ForwardRange:
    """The largest forward value of one site and role."""

    site: Site
    role: str
    amax: float


def forward_range(recording: Recording, islands: Iterable[Island] = ()) -> list[ForwardRange]:
    """Returns what enters and leaves 16-bit products and what is computed between, largest first.

    Inputs count whatever produced them: autocast casts them to 16 bits on the way in. Arithmetic counts where it
    would run in 16 bits.
    """
    inside = tuple(islands)
    rows = [
        ForwardRange(site, role, recording.summaries[site.path, role].amax)
        for site in (*recording.matrix_sites, *arithmetic_sites(recording))
        for role in ("output", "input")
        if (site.path, role) in recording.summaries and not _is_float32(site, inside)
    ]
    return sorted(rows, key=lambda row: -row.amax)


def arithmetic_sites(recording: Recording) -> tuple[Site, ...]:
    """Returns the sums, products and fills between 16-bit products that would run in 16 bits."""
    return tuple(site for site in recording.sites if site.sources and not site.matrix)


def _is_float32(site: Site, islands: tuple[Island, ...]) -> bool:
    if site.matrix:
        return covered(site.path, islands)
    return any(covered(source, islands) for source in site.sources)  # the wider operand decides


def forward_islands(recording: Recording) -> tuple[Island, ...]:
    """Returns the float32 islands that keep every forward value inside float16, with `MARGIN_BITS` to spare."""
    threshold = get_format("float16").max / 2**MARGIN_BITS
    high = [row for row in forward_range(recording) if row.amax > threshold]
    islands: dict[str, Island] = {}

    def keep(path: str, reason: Reason) -> None:
        islands.setdefault(_module_of(path), Island(_module_of(path), reason))

    for row in high:
        if row.site.matrix:
            keep(row.site.path, _reason(row))
    for row in high:
        code = "feeds_island" if row.site.matrix else "feeds_overflow"
        data = {"site": row.site.path, "amax": magnitude(row.amax), "limit": magnitude(get_format("float16").max)}
        for source in row.site.sources if row.role == "input" or not row.site.matrix else ():
            keep(source, Reason(code, data))
    for site in arithmetic_sites(recording):
        for source in site.sources if site.constant else ():
            keep(source, Reason("feeds_constant", {"site": site.path, "constant": f"{site.constant:g}"}))
    return _outermost(islands.values())


def covered(path: str, islands: Iterable[Island]) -> bool:
    """True when a site or parameter lies in one of the islands."""
    module = path.partition(":")[0]
    return any(i.module == "" or module == i.module or module.startswith(i.module + ".") for i in islands)


def island_share(recording: Recording, islands: Iterable[Island]) -> float:
    """Returns the share of the matrix FLOPs that the islands keep in float32."""
    inside = tuple(islands)
    total = sum(site.flops for site in recording.matrix_sites)
    return sum(s.flops for s in recording.matrix_sites if covered(s.path, inside)) / total if total else 0.0


def _reason(row: ForwardRange) -> Reason:
    limit = get_format("float16").max
    return Reason(
        "forward_overflow" if row.amax >= get_format("float16").overflow_threshold else "forward_near_limit",
        {
            "site": row.site.path,
            "role": row.role,
            "role_zh": _ROLES_ZH[row.role],
            "amax": magnitude(row.amax),
            "limit": magnitude(limit),
            "margin": MARGIN_BITS,
        },
    )


def _module_of(path: str) -> str:
    return path.partition(":")[0]


def _outermost(islands: Iterable[Island]) -> tuple[Island, ...]:
    rows = list(islands)
    return tuple(
        sorted(
            (i for i in rows if not any(o is not i and covered(i.module, [o]) for o in rows)),
            key=lambda i: i.module,
        )
    )

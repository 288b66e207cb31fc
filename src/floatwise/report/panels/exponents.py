# SPDX-License-Identifier: Apache-2.0
"""How the values of each role are spread over powers of two, and what float16 would do to them."""

from __future__ import annotations

from collections.abc import Sequence

from floatwise.language import Text
from floatwise.planner.decision import Decision, LossScaleChoice
from floatwise.probe.recording import Recording
from floatwise.report import numbers, sentences
from floatwise.report.drawing import Drawing, Key
from floatwise.report.exponents import GRADIENT_ROLES, ROLES, ExponentRow, RoleExponents, fates, role_exponents
from floatwise.report.figures import exponents_figure
from floatwise.report.figures.exponents import FATES, LEAST_SHARE
from floatwise.report.loss_scale import ShownScale, shown_scale
from floatwise.report.panels.panel import Panel
from floatwise.report.plain import paragraph, plain
from floatwise.report.tables import NumbersTable
from floatwise.stats import overflow_share, subnormal_share, underflow_share

__all__ = ["exponent_panels"]

_SAYS = Text(
    "Histogram of {role} over powers of two, and a row of colours for each module. {words}",
    "{role}按 2 的幂的分布，每个模块一行色块。{words}",
)
_PLAIN = Text(
    "In float16, {zero} of the nonzero values become zero and {over} overflow.",
    "在 float16 中，非零值有 {zero} 变为零，{over} 上溢。",
)
_SCALED = Text(
    "Times {recipe}'s first loss scale, {scale}: {zero} and {over}.",
    "乘以 {recipe} 的初始损失缩放 {scale} 后，分别为 {zero} 和 {over}。",
)
_WOULD = Text(
    "Times a loss scale of {scale}, which float16 would need: {zero} and {over}.",
    "乘以 float16 所需的损失缩放 {scale} 后，分别为 {zero} 和 {over}。",
)
_CUT = Text("Values under {low} are counted at the left end.", "小于 {low} 的数值计入最左端。")
_FOLDED = Text(
    "{modules} modules share {rows} rows: those whose paths differ in numbers or lie deeper.",
    "{modules} 个模块合并为 {rows} 行：路径中仅编号不同或层级更深的合在一起。",
)
_RANGE_KEY = Text("what a format holds, lighter where it has fewer digits", "格式的可表示范围（浅色：有效位数减少）")
_WINDOW_KEY = Text(
    "loss-scale window: where the upper end of float16 may lie", "损失缩放窗口：float16 的上限可落在其中"
)
_COLOURS_KEY = Text("share of a module's values, {least} to 100 %", "占该模块数值的比例，{least} 至 100 %")


def exponent_panels(decisions: Sequence[Decision], recording: Recording) -> list[Panel]:
    """Returns a panel for every role that was recorded, gradients first."""
    shown = shown_scale(decisions, recording)
    found = (role_exponents(recording, role) for role in ROLES)
    return [_panel(values, shown if values.role in GRADIENT_ROLES else None) for values in found if values is not None]


def _panel(values: RoleExponents, shown: ShownScale | None) -> Panel:
    scale = shown.choice if shown is not None else None
    said = [_PLAIN.format(**_losses(values, 0))]
    if shown is not None:
        words = {"recipe": plain(shown.recipe), "scale": numbers.power_of_two(shown.choice.initial)}
        frame = _SCALED if shown.recipe else _WOULD
        said.append(frame.format(**words, **_losses(values, numbers.nearest_log2(shown.choice.initial))))
    name = sentences.role_name(values.role)
    drawing = Drawing(
        f"exponents-{values.role.replace('_', '-')}",
        exponents_figure(values, scale),
        _SAYS.format(role=name, words=paragraph(said)),
        _keys(values, scale),
    )
    modules = sum(row.modules for row in values.rows)
    if modules > len(values.rows):
        said.append(_FOLDED.format(modules=modules, rows=len(values.rows)))
    if values.cut:
        said.append(_CUT.format(low=f"2^{values.low}"))
    return Panel(name, drawing, paragraph(said), (_by_module(values, scale), _by_exponent(values)))


def _losses(values: RoleExponents, shift: int) -> dict[str, str]:
    summary = values.whole.summary
    return {
        "zero": numbers.percent(underflow_share(summary, "float16", shift)),
        "over": numbers.percent(overflow_share(summary, "float16", shift)),
    }


def _keys(values: RoleExponents, scale: LossScaleChoice | None) -> tuple[Key, ...]:
    shift = numbers.nearest_log2(scale.initial) if scale is not None else 0
    there = fates(values, shift)
    keys = [Key(str(words), colour) for name, (colour, words) in FATES.items() if name in there]
    keys.append(Key(str(_RANGE_KEY), "var(--range)", "range"))
    if scale is not None:
        keys.append(Key(str(_WINDOW_KEY), "var(--window)"))
    keys.append(Key(_COLOURS_KEY.format(least=numbers.percent(LEAST_SHARE)), "", "heat"))
    return tuple(keys)


_BY_MODULE = Text("By module", "各模块数值")
_BY_EXPONENT = Text("By magnitude", "按数值大小的分布")
_MODULE = Text("module", "模块")
_LARGEST = Text("largest", "最大值")
_ZEROS = Text("zeros", "零")
_TO_ZERO = Text("to zero in {format}", "在 {format} 中变为零")
_FEWER = Text("fewer digits", "位数减少")
_OVER = Text("overflow", "上溢")
_FROM = Text("from", "下界")
_BELOW = Text("below", "更小")
_TO = Text("to", "上界")
_SHARE = Text("share", "占比")
_ALL = Text("all", "全部")


def _by_module(values: RoleExponents, scale: LossScaleChoice | None) -> NumbersTable:
    shift, name = 0, "float16"
    if scale is not None:
        shift, name = numbers.nearest_log2(scale.initial), f"float16 × {numbers.power_of_two(scale.initial)}"
    to_zero = (_TO_ZERO.format(format=format_name) for format_name in (name, "bfloat16"))
    headers = (str(_MODULE), str(_LARGEST), str(_ZEROS), next(to_zero), str(_FEWER), str(_OVER), next(to_zero))
    rows = [_module_row(str(_ALL), values.whole, shift), *(_module_row(row.name, row, shift) for row in values.rows)]
    return NumbersTable(str(_BY_MODULE), headers, tuple(rows), is_code=True)


def _module_row(name: str, row: ExponentRow, shift: int) -> tuple[str, ...]:
    summary = row.summary
    return (
        name,
        numbers.quantity(summary.amax),
        numbers.percent(row.spread.zero),
        numbers.percent(underflow_share(summary, "float16", shift)),
        numbers.percent(subnormal_share(summary, "float16", shift)),
        numbers.percent(overflow_share(summary, "float16", shift)),
        numbers.percent(underflow_share(summary, "bfloat16")),
    )


def _by_exponent(values: RoleExponents) -> NumbersTable:
    spread = values.whole.spread
    rows = [("0", "", numbers.percent(spread.zero))]
    for exponent, share in enumerate(spread.by_exponent, start=values.low):
        low = str(_BELOW) if values.cut and exponent == values.low else f"2^{exponent}"
        rows.append((low, f"2^{exponent + 1}", numbers.percent(share)))
    if spread.nonfinite:
        rows.append(("∞, NaN", "", numbers.percent(spread.nonfinite)))
    return NumbersTable(str(_BY_EXPONENT), (str(_FROM), str(_TO), str(_SHARE)), tuple(rows))

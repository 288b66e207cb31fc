# SPDX-License-Identifier: Apache-2.0
"""What another system's configuration means: the formats it trains in, and what is dangerous in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text as Line

from floatwise.exporters.settings import Settings
from floatwise.exporters.system import Finding, Reading, System
from floatwise.language import Text
from floatwise.plan import Plan
from floatwise.plan.problems import dotted
from floatwise.report.explain import facts_table
from floatwise.report.numbers import number
from floatwise.report.plain import plain
from floatwise.report.terminal import WIDEST, print_section
from floatwise.report.terminal_tables import marked

__all__ = ["Imported", "imported_to_json", "render_imported"]

_TITLE = Text(
    "{file} configures {title} (read as version {version})", "{file} 是 {title} 的配置（按版本 {version} 解读）"
)
_MEANS = Text("It trains like this", "训练方式")
_DECIDED = Text("Its formats are those of {file}, which decides.", "训练格式由 {file} 决定。")
_FOUND = Text("Found in it", "其中的发现")
_NEAREST = Text("nearest recipe", "最接近的配方")
_WEIGHTS = Text("weights are stored in", "权重的存储格式")
_MASTER = Text("master weights", "主权重")
_COMPUTE = Text("matrix products take", "矩阵乘法的操作数")
_SCALING = Text("float8 scale factors", "float8 缩放因子")
_FLOAT32 = Text("float32 products", "float32 乘法")
_OUTPUT = Text("outputs are handed on in", "输出的格式")
_REDUCE = Text("gradients are summed over processes in", "进程间梯度求和的格式")
_ACCUMULATE = Text("gradients are summed over batches in", "批次间梯度求和的格式")
_BUFFERS = Text("buffers", "缓冲区")
_SCALE = Text("loss scale", "损失缩放")
_MODULES = Text("modules of their own formats", "单独设置格式的模块")
_DYNAMIC = Text(
    "dynamic, from {start}; ×{growth:g} after {interval} good steps, ×{backoff:g} on overflow",
    "动态，初始 {start}；连续 {interval} 步正常后 ×{growth:g}，溢出时 ×{backoff:g}",
)
_STATIC = Text("always {start}", "固定为 {start}")
_NONE = Text("none", "无")


@dataclass(frozen=True)
class Imported:
    """One configuration that was read.

    Attributes:
      system: Whose it is.
      version: The version it was read as.
      settings: What stands in it.
      reading: What it means.
    """

    system: System
    version: str
    settings: Settings
    reading: Reading

    def where(self, finding: Finding) -> str:
        """Returns `file:line: key` of a finding."""
        place = f"{self.settings.source}:{self.settings.line(finding.loc)}"
        return f"{place}: {dotted(finding.loc)}" if finding.loc else place


def render_imported(imported: Imported, console: Console, decided_by: str = "") -> None:
    """Prints what a configuration means.

    Args:
      imported: The configuration.
      console: Where to.
      decided_by: The file beside it that decides the formats; empty when this one does.
    """
    width = min(console.width, WIDEST)
    title = _TITLE.format(file=imported.settings.source, title=imported.system.title, version=imported.version)
    console.print(Line(plain(title), style="bold"), width=width, highlight=False)
    if decided_by:
        console.print(Line(plain(_DECIDED.format(file=decided_by)), style="dim"), width=width, highlight=False)
    else:
        print_section(console, str(_MEANS), facts_table(_facts(imported.reading.plan)), width)
    if imported.reading.findings:
        rows = [_finding(imported, finding) for finding in imported.reading.findings]
        print_section(console, str(_FOUND), Group(*rows), width)


def imported_to_json(imported: Imported) -> dict[str, Any]:
    """Returns what was read as JSON values, sentences in the current language."""
    return {
        "file": imported.settings.source,
        "system": imported.system.name,
        "version": imported.version,
        "plan": imported.reading.plan.model_dump(mode="json", exclude_none=True),
        "findings": [
            {"code": f.code, "where": imported.where(f), "what": str(f.what), "do": str(f.do)}
            for f in imported.reading.findings
        ],
    }


def _facts(plan: Plan) -> Iterator[tuple[Text, str]]:
    yield _NEAREST, plan.recipe
    yield _WEIGHTS, plan.policy.param_dtype
    yield _MASTER, plan.weights.master if plan.weights.master != "none" else ""
    yield _COMPUTE, plan.compute_dtype
    yield _SCALING, plan.scaling or ""
    yield _FLOAT32, "TF32" if plan.float32_matmul == "tf32" else ""
    yield _OUTPUT, plan.policy.output_dtype
    yield _REDUCE, plan.reductions.reduce_dtype
    yield _ACCUMULATE, plan.reductions.accumulate_dtype
    yield _BUFFERS, plan.reductions.buffer_dtype
    yield _SCALE, _loss_scale(plan)
    yield _MODULES, ", ".join(entry.module for entry in plan.modules)


def _loss_scale(plan: Plan) -> str:
    scale = plan.loss_scale
    if scale is None:
        return str(_NONE)
    if scale.mode == "static":
        return _STATIC.format(start=number(scale.initial_scale))
    return _DYNAMIC.format(
        start=number(scale.initial_scale),
        growth=scale.growth_factor,
        interval=scale.growth_interval,
        backoff=scale.backoff_factor,
    )


def _finding(imported: Imported, finding: Finding) -> RenderableType:
    where = Line(plain(imported.where(finding)), style="cyan")
    body = Group(where, Line(plain(finding.what)), Line(plain(finding.do), style="dim"))
    return marked("!", body, "bold yellow")

# SPDX-License-Identifier: Apache-2.0
"""`floatwise run`: trains an unmodified script under a plan."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from floatwise.cli.packages import framework_for
from floatwise.cli.plan_files import DEFAULT_PLAN
from floatwise.cli.plan_source import plan_from
from floatwise.errors import ScriptError
from floatwise.hardware import best_here
from floatwise.language import Text
from floatwise.plan import Plan, recipe
from floatwise.tap.script_framework import keras_backend_of

__all__ = ["run"]

_NO_PLAN = Text(
    "no {path} here: using {recipe}, which suits {device}; `floatwise plan {script}` decides from your script's values",
    "当前目录没有 {path}：使用适合 {device} 的 {recipe}；运行 `floatwise plan {script}` 可根据脚本自身的数值做决定",
)
_USING = Text("{recipe} from {path}, made for {target}", "使用 {path} 中的 {recipe}（为 {target} 生成）")
_SLOW_HERE = Text(
    "{device} has no {format} matrix unit: training in {format} is slow here, and only a trial",
    "{device} 没有 {format} 矩阵单元：在这里以 {format} 训练会很慢，只适合试运行",
)
_OTHER_SCRIPT = Text(
    "{path} was made for {planned}, not for {script}; make its own with `floatwise plan {script}`",
    "{path} 是为 {planned} 生成的，不是为 {script}；请运行 `floatwise plan {script}` 生成它自己的计划",
)


def run(
    script: Annotated[str, typer.Argument(help="The training script, unmodified.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments, after --.")] = None,
    plan: Annotated[Path | None, typer.Option("-p", "--plan", help="Plan file. Default: precision.toml.")] = None,
    recipe_name: Annotated[str | None, typer.Option("--recipe", help="A recipe instead of a plan file.")] = None,
    framework: Annotated[
        str | None, typer.Option(help="torch, keras or jax. Default: what the script's imports say.")
    ] = None,
) -> None:
    """Train an unmodified script under its plan (several processes: torchrun -m floatwise run …)."""
    if not Path(script).is_file():
        raise ScriptError(f"{script}: no such file; give the path of a Python training script")
    trains_with = framework_for(script, framework)
    chosen = _choose(script, plan, recipe_name, trains_with)
    _warn_if_slow(chosen)
    runtime = importlib.import_module(f"floatwise.{trains_with}.script.run")
    raise typer.Exit(runtime.run_under_plan(chosen, script, arguments or ()))


def _choose(script: str, plan: Path | None, recipe_name: str | None, framework: str) -> Plan:
    path = plan or DEFAULT_PLAN
    if plan is None and recipe_name is None and not path.exists():
        return _by_hardware(script, framework)
    loaded = plan_from(plan, recipe_name)
    if recipe_name is not None:
        return loaded
    if loaded.script and loaded.script != Path(script).name:
        _tell(_OTHER_SCRIPT.format(path=path, planned=loaded.script, script=script))
    if loaded.target:
        _tell(_USING.format(recipe=loaded.recipe, path=path, target=loaded.target))
    return loaded


def _warn_if_slow(plan: Plan) -> None:
    device = best_here().device
    if device is not None and not plan.is_float32 and plan.compute_dtype != "float32":
        if not device.has_matrix(plan.compute_dtype):
            _tell(_SLOW_HERE.format(device=device.name, format=plan.compute_dtype))


def _by_hardware(script: str, framework: str) -> Plan:
    device = best_here().device
    name = "fp32"
    uses_xla = framework == "jax" or (framework == "keras" and keras_backend_of(script) == "jax")
    for candidate, unit in (("bf16-mixed", "bfloat16"), ("fp16-mixed", "float16")):
        if uses_xla and device is not None and device.kind == "cpu":
            break  # XLA computes most of these products in float32 there
        if device is not None and device.has_matrix(unit) and unit not in device.unreliable:
            name = candidate
            break
    shown = device.name if device is not None else best_here().reported_name
    _tell(_NO_PLAN.format(path=DEFAULT_PLAN, recipe=name, device=shown, script=script))
    return recipe(name)


def _tell(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"floatwise: {sentence}", file=sys.stderr)

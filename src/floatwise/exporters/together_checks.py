# SPDX-License-Identifier: Apache-2.0
"""What configurations of one training contradict each other in: each rule looks at two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from floatwise.exporters.accelerate_modes import MODES
from floatwise.exporters.deepspeed_beneath import accelerate_mode, named_deepspeed, trainer_flags
from floatwise.exporters.settings import Settings
from floatwise.exporters.system import Finding
from floatwise.language import Text
from floatwise.plan.problems import Loc, Problem

__all__ = ["Conflict", "Files", "conflicts_of"]

# accelerate/utils/dataclasses.py `DeepSpeedPlugin._deepspeed_config_checks`, 1.15.0.
_NOT_BESIDE_A_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)

_AUTO_IS_FALSE = Text(
    '"auto" is filled in from mixed_precision of `accelerate launch`, which is not given: it becomes false, and '
    "DeepSpeed trains in float32.",
    '"auto" 由 `accelerate launch` 的 mixed_precision 填入，而它没有给出：结果为 false，DeepSpeed 以 float32 训练。',
)
_AUTO_IS_FALSE_DO = Text(
    "Write true here, or start with `accelerate launch --mixed_precision bf16` (no file may name it beside a DeepSpeed "
    "file).",
    "在这里写 true，或用 `accelerate launch --mixed_precision bf16` 启动（配置文件中不能同时写它和 DeepSpeed 文件）。",
)
_OVERRIDDEN = Text(
    "mixed_precision is {given} here and {taken} in TrainingArguments: Trainer's arguments win, without a message.",
    "此处 mixed_precision 为 {given}，而 TrainingArguments 中为 {taken}：以 Trainer 的参数为准，且没有提示。",
)
_OVERRIDDEN_DO = Text("Write the same in both, or delete it here.", "两处写成一致，或删除此处的设置。")
_TWO_FILES = Text(
    "TrainingArguments and `accelerate launch` name different DeepSpeed files: the one of TrainingArguments is taken, "
    "without a message.",
    "TrainingArguments 与 `accelerate launch` 指定了不同的 DeepSpeed 文件：采用 TrainingArguments 的那个，且没有提示。",
)
_TWO_FILES_DO = Text("Name it in one place.", "只在一处指定。")
_IDLE = Text(
    "deepspeed_config counts only with distributed_type: DEEPSPEED; it does nothing here.",
    "deepspeed_config 只有在 distributed_type: DEEPSPEED 时才起作用；在这里无效。",
)
_IDLE_DO = Text("Write distributed_type: DEEPSPEED, or delete it.", "改为 distributed_type: DEEPSPEED，或删除它。")
_NO_TABLE = Text(
    "There is no {table} table: Accelerate adds it, so weights are {dtype}, but Trainer does not cast floating inputs "
    "(images, audio) to it: mat1 and mat2 must have the same dtype.",
    "没有 {table} 表：Accelerate 会补上它，权重因此为 {dtype}，但 Trainer 不会把浮点输入（图像、音频）转换过去，"
    "于是报错：mat1 and mat2 must have the same dtype。",
)
_NO_TABLE_DO = Text('Add "{table}": {{"enabled": "auto"}}.', '请加上 "{table}": {{"enabled": "auto"}}。')


@dataclass(frozen=True)
class Files:
    """The configurations of one training by their systems; None where none is given.

    Attributes:
      trainer: Arguments of Trainer.
      accelerate: Accelerate's file or script.
      deepspeed: The DeepSpeed file that one of them is given, as written ("auto" not filled in).
    """

    trainer: Settings | None
    accelerate: Settings | None
    deepspeed: Settings | None


@dataclass(frozen=True)
class Conflict:
    """What was found, in which file.

    Attributes:
      settings: The file to blame.
      what: A problem, with which training does not start, or a finding.
    """

    settings: Settings
    what: Problem | Finding


def conflicts_of(files: Files) -> Sequence[Conflict]:
    """Returns what the files contradict each other in."""
    return [
        *_beside_a_file(files),
        *_trainer_and_deepspeed(files),
        *_missing_table(files),
        *_accelerate_and_deepspeed(files),
        *_accelerate_and_trainer(files),
        *_no_zero(files),
    ]


def _beside_a_file(files: Files) -> Iterator[Conflict]:
    """Accelerate's file may not say what a DeepSpeed file says."""
    settings = files.accelerate
    if settings is None or settings.form == "python":
        return
    named = named_deepspeed("accelerate", settings)
    if str(settings.get("distributed_type")).upper() != "DEEPSPEED":
        if settings.get("deepspeed_config"):
            yield Conflict(settings, Finding("idle-deepspeed-config", ("deepspeed_config",), _IDLE, _IDLE_DO))
        return
    if named is None:
        return
    rows: list[Loc] = [("deepspeed_config", key) for key in _NOT_BESIDE_A_FILE if settings.has("deepspeed_config", key)]
    if settings.get("mixed_precision") is not None:
        rows.append(("mixed_precision",))
    for loc in rows:
        yield Conflict(
            settings,
            Problem(
                loc,
                "stands beside deepspeed_config_file, and `accelerate launch` ends with ValueError: When using "
                "`deepspeed_config_file`, the following accelerate config variables will be ignored; delete it here "
                f"and write it in {named.value}",
            ),
        )


def _trainer_and_deepspeed(files: Files) -> Iterator[Conflict]:
    """Trainer compares its arguments with what is not "auto", and ends before the first step."""
    if files.trainer is None or files.deepspeed is None:
        return
    flags = trainer_flags(files.trainer)
    for table in ("fp16", "bf16"):
        given, wanted = files.deepspeed.get(table, "enabled"), flags.value(table)
        if given is None or given == "auto" or given == wanted:
            continue
        where = f"{files.trainer.source}:{files.trainer.line((*flags.loc, table))}"
        yield Conflict(
            files.deepspeed,
            Problem(
                (table, "enabled"),
                f"got {_shown(given)} while TrainingArguments ({where}) says {table} or {table}_full_eval = "
                f"{_shown(wanted)}, and Trainer ends with ValueError: Please correct the following DeepSpeed config "
                'values that mismatch TrainingArguments; write "auto" here',
            ),
        )


def _missing_table(files: Files) -> Iterator[Conflict]:
    """Trainer takes the format of inputs from the file as written (transformers/trainer.py, 5.24.0; measured)."""
    if files.trainer is None or files.deepspeed is None:
        return
    table = trainer_flags(files.trainer).mode
    if table != "no" and not files.deepspeed.has(table) and not files.deepspeed.has("bfloat16"):
        words = {"table": table, "dtype": MODES[table]}
        what = Text(_NO_TABLE.en.format(**words), _NO_TABLE.zh.format(**words))
        do = Text(_NO_TABLE_DO.en.format(**words), _NO_TABLE_DO.zh.format(**words))
        yield Conflict(files.deepspeed, Finding("no-precision-table", (), what, do))


def _accelerate_and_deepspeed(files: Files) -> Iterator[Conflict]:
    if files.accelerate is None or files.deepspeed is None or files.trainer is not None:
        return
    mode, loc = accelerate_mode(files.accelerate)
    other = {"fp16": "bf16", "bf16": "fp16", "fp8": "fp16"}.get(mode)
    if other and str(files.deepspeed.get(other, "enabled")).lower() == "true":
        where = f"{files.accelerate.source}:{files.accelerate.line(loc)}"
        yield Conflict(
            files.deepspeed,
            Problem(
                (other, "enabled"),
                f"got true while mixed_precision is {mode} ({where}), and Accelerate ends with ValueError: "
                f"`--mixed_precision` arg cannot be set to `{mode}` when `{other}` is set in the DeepSpeed config "
                'file; write "auto" here',
            ),
        )
    if files.accelerate.form == "python" or mode != "no":
        return
    tables = [table for table in ("fp16", "bf16") if files.deepspeed.get(table, "enabled") == "auto"]
    if tables and not any(files.deepspeed.get(table, "enabled") is True for table in ("fp16", "bf16")):
        loc = (tables[0], "enabled")
        yield Conflict(files.deepspeed, Finding("auto-is-false", loc, _AUTO_IS_FALSE, _AUTO_IS_FALSE_DO))


def _accelerate_and_trainer(files: Files) -> Iterator[Conflict]:
    if files.accelerate is None or files.trainer is None or files.accelerate.form == "python":
        return
    mode, loc = accelerate_mode(files.accelerate)
    taken = trainer_flags(files.trainer).mode
    if "no" not in (mode, taken) and mode != taken:
        words = {"given": mode, "taken": taken}
        what = Text(_OVERRIDDEN.en.format(**words), _OVERRIDDEN.zh.format(**words))
        yield Conflict(files.accelerate, Finding("precision-overridden", loc, what, _OVERRIDDEN_DO))
    names = [named_deepspeed("accelerate", files.accelerate), named_deepspeed("transformers", files.trainer)]
    if names[0] and names[1] and names[0].value != names[1].value:
        yield Conflict(files.accelerate, Finding("two-deepspeed-files", names[0].loc, _TWO_FILES, _TWO_FILES_DO))


def _no_zero(files: Files) -> Iterator[Conflict]:
    if files.deepspeed is not None and not files.deepspeed.has("zero_optimization"):
        yield Conflict(
            files.deepspeed,
            Problem(
                (),
                "has no zero_optimization, and Accelerate ends with ValueError: Please specify the ZeRO optimization "
                'config in the DeepSpeed config; add "zero_optimization": {"stage": 0} or a higher stage',
            ),
        )


def _shown(value: object) -> str:
    return {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)

# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: a loop of one's own, alone, under DDP, FSDP2, or DeepSpeed's ZeRO."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatwise.language import Text
from floatwise.scaffold.framework import ConfigFile, Framework
from floatwise.scaffold.own_code import without_own_code
from floatwise.scaffold.zero import float16_note, zero_config

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["ACCELERATE"]

_LAUNCH = "accelerate launch --config_file accelerate_config.yaml train.py"


def _is_zero(answers: Answers) -> bool:
    return answers.parallel.startswith("zero")


def _packages(answers: Answers) -> tuple[str, ...]:
    packages = ("torch", "numpy", "accelerate")
    return (*packages, "deepspeed") if _is_zero(answers) else packages


def _templates(answers: Answers, choices: Choices) -> Mapping[str, str]:
    templates = {
        "train.py": "accelerate/train.py.j2",
        "model.py": "torch/model.py.j2",
        "census.py": "torch/census.py.j2",
        "find_nan.py": "torch/find_nan.py.j2",
    }
    if answers.parallel != "single":
        templates["few_gpus.py"] = "torch/few_gpus.py.j2"
    if _is_zero(answers):
        templates["zero_census.py"] = "deepspeed/zero_census.py.j2"
    return templates


def _configs(answers: Answers, choices: Choices) -> tuple[ConfigFile, ...]:
    plan = without_own_code(choices.plan, has_own_scale=False)
    options = {"fsdp": 2} if answers.parallel == "fsdp2" else {}

    def for_launcher(text: str) -> str:
        return _launcher_file(text, answers)

    def as_values(text: str) -> str:
        return _precision_module(text, choices)

    launcher = ConfigFile(
        name="accelerate_config.yaml",
        system="accelerate",
        form="yaml",
        options=options,
        plan=without_own_code(choices.plan),
        wrap=for_launcher,
    )
    if _is_zero(answers):
        batches = {
            "train_micro_batch_size_per_gpu": choices.micro_batch,
            "gradient_accumulation_steps": choices.accumulation,
            "gradient_clipping": choices.clip_norm,
        }
        return (zero_config(answers, choices, batches), launcher)
    values = ConfigFile(
        name="precision.py", system="accelerate", form="python", options=options, plan=plan, wrap=as_values
    )
    return (values, launcher)


# accelerate/utils/dataclasses.py, 1.15.0: `DistributedType`.
_DISTRIBUTED = {"single": "'NO'", "ddp": "MULTI_GPU", "fsdp2": "FSDP"}


def _launcher_file(text: str, answers: Answers) -> str:
    """Adds how many processes there are; under ZeRO, Accelerate refuses a precision beside DeepSpeed's own."""
    lines = [line for line in text.splitlines() if not line.startswith("distributed_type")]
    if _is_zero(answers):
        lines = [line for line in lines if not line.startswith("mixed_precision")]
        lines += ["deepspeed_config:", "  deepspeed_config_file: ds_config.json", "  zero3_init_flag: false"]
    machines = -(-answers.gpus // 8)
    lines[1:1] = [
        f"distributed_type: {_DISTRIBUTED.get(answers.parallel, 'DEEPSPEED')}",
        f"num_processes: {answers.gpus}",
        f"num_machines: {machines}",
        "machine_rank: 0",
    ]
    return "\n".join(lines) + "\n"


def _precision_module(text: str, choices: Choices) -> str:
    """Turns the call of Accelerator, to which `train.py` adds arguments, into the values of its arguments."""
    tree = ast.parse(text)
    assigned = next(node for node in tree.body if isinstance(node, ast.Assign))
    assert isinstance(assigned.value, ast.Call)
    arguments = {keyword.arg: keyword.value for keyword in assigned.value.keywords}
    lines = ['"""The plan as arguments of Accelerate\'s classes."""', ""]
    values = [f"MIXED_PRECISION = {_text(arguments['mixed_precision'])}"]
    plugin = arguments.get("fsdp_plugin")
    if isinstance(plugin, ast.Call):
        policy = next(keyword.value for keyword in plugin.keywords if keyword.arg == "mixed_precision_policy")
        assert isinstance(policy, ast.Dict)
        rows = zip(policy.keys, policy.values, strict=True)
        values.append("POLICY = {\n" + "".join(f"    {_text(k)}: {_text(v)},\n" for k, v in rows if k) + "}")
    handlers = arguments.get("kwargs_handlers")
    if isinstance(handlers, ast.List):
        values.append("HANDLERS = [\n" + "".join(_call_lines(call) for call in handlers.elts) + "]")
    elif choices.plan.compute_dtype == "float16":
        values.append("HANDLERS = []")
    used = "\n".join(values)
    if "torch." in used:
        lines.append("import torch")
    if "GradScalerKwargs" in used:
        lines.append("from accelerate.utils import GradScalerKwargs")
    return "\n".join([*lines, "", used]).replace("\n\n\n", "\n\n") + "\n"


def _text(node: ast.expr) -> str:
    return f'"{node.value}"' if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _call_lines(node: ast.expr) -> str:
    assert isinstance(node, ast.Call)
    arguments = "".join(f"        {keyword.arg}={_text(keyword.value)},\n" for keyword in node.keywords)
    return f"    {_text(node.func)}(\n{arguments}    ),\n"


def _notes(answers: Answers, choices: Choices) -> tuple[Text, ...]:
    notes: tuple[Text, ...] = ()
    if _is_zero(answers):
        notes += float16_note(answers, choices)
    if answers.parallel == "fsdp2":
        notes += (
            Text(
                "Accelerate 1.15 shards on GPUs only: started on a CPU, it trains plain DDP; train.py says so.",
                "Accelerate 1.15 只在 GPU 上分片：在 CPU 上启动时实际为普通 DDP，train.py 会给出提示。",
            ),
        )
    return notes


def _cpu_exception(answers: Answers, choices: Choices) -> Text | None:
    if choices.plan.compute_dtype != "float16":
        return None
    return Text(
        "Accelerate has no float16 on CPUs, so train.py takes float32 there; run this on the GPU",
        "Accelerate 在 CPU 上不支持 float16，train.py 在那里改用 float32；请在 GPU 上运行",
    )


ACCELERATE = Framework(
    name="accelerate",
    title=Text("Hugging Face Accelerate", "Hugging Face Accelerate"),
    packages=_packages,
    templates=_templates,
    configs=_configs,
    launch_many=lambda answers: _LAUNCH,
    notes=_notes,
    cpu_exception=_cpu_exception,
    file_texts={
        "precision.py": Text("the plan as arguments of Accelerate's classes", "计划对应的 Accelerate 参数"),
        "accelerate_config.yaml": Text(
            "how `accelerate launch` starts the processes", "`accelerate launch` 如何启动各进程"
        ),
        "ds_config.json": Text("the plan as DeepSpeed's configuration", "计划对应的 DeepSpeed 配置"),
        "few_gpus.py": Text("more processes than GPUs train on the CPU", "进程数多于 GPU 数时改用 CPU"),
        "zero_census.py": Text("the census where ZeRO divides tensors", "ZeRO 分片时的格式统计"),
    },
    test_steps=24,
)

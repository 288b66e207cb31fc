# SPDX-License-Identifier: Apache-2.0
"""MosaicML Composer: `Trainer(precision=...)`, its FSDP formats, and the GradScaler of its state.

Composer has no argument for the loss scale; the scaler that its state holds is replaced after the trainer is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.exporters.grad_scaler import SCALER_NAMES, grad_scaler_arguments, grad_scaler_knobs, loss_scale_of
from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.python_text import call_text, value_text
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.shared_losses import GRAD_SCALER_LOSSES, RECORD_LOSSES
from floatwise.exporters.system import Finding, Loss, Option, Reading, Refusal, Remark, Request, System
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.plan.model import LossScale, Plan, Reductions
from floatwise.plan.problems import Problem

__all__ = ["COMPOSER"]

_PRECISION = "composer/core/precision.py, 0.32.1"
_TRAINER = "composer/trainer/trainer.py, 0.32.1"
_FSDP = "composer/distributed/mosaic_parallelism.py, 0.32.1"

_NAMES = {"float32": "fp32", "bfloat16": "amp_bf16", "float16": "amp_fp16", "float8_e4m3fn": "amp_fp8"}
_COMPUTE = {name: dtype for dtype, name in _NAMES.items()}
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# The names that get_mixed_precision takes (composer/distributed/mosaic_parallelism.py, 0.32.1).
_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("float32", "torch.float32", "fp32"), "float32"),
    **dict.fromkeys(("float16", "torch.float16", "half", "fp16", "amp", "amp_fp16"), "float16"),
    **dict.fromkeys(("bfloat16", "bfloat", "torch.bfloat16", "bf16", "amp_bf16"), "bfloat16"),
    **dict.fromkeys(("float8", "torch.float8", "fp8", "amp_fp8"), "bfloat16"),
}
_FORMATS = "MIXED_PRECISION"
_PARALLELISM_SINCE = "0.23"  # Trainer's arguments, tags v0.22.0 and v0.23.0
_FSDP_CONFIG_UNTIL = "0.26"  # tags v0.25.0 and v0.26.0

_SCALER = Text(
    "    # Trainer makes a GradScaler of PyTorch's defaults; give fit() no precision, or it makes another.\n",
    "    # Trainer 会创建默认参数的 GradScaler；不要给 fit() 传 precision，否则会重新创建。\n",
)

_DEFAULT = Finding(
    "float16-by-default",
    ("Trainer",),
    Text(
        "No precision is given: Composer trains in float16 on a GPU, and in float32 on a CPU.",
        "没有给出 precision：Composer 在 GPU 上用 float16 训练，在 CPU 上用 float32。",
    ),
    Text('Write precision="amp_bf16", or "fp32".', '写 precision="amp_bf16" 或 "fp32"。'),
)


def _write(plan: Plan, request: Request) -> str:
    arguments: dict[str, Any] = {
        "model": Dotted("model"),
        "train_dataloader": Dotted("train_dataloader"),
        "precision": _NAMES[plan.compute_dtype],
    }
    imports, constants = "from composer import Trainer\n", ""
    if plan.compute_dtype in FLOAT8_FORMATS:
        imports += "from transformer_engine.common.recipe import Format\n"
        # Composer's own, written out since they differ from TransformerEngine's.
        arguments["precision_config"] = {
            "fp8_format": Dotted("Format.HYBRID"),
            "amax_history_len": 16,
            "amax_compute_algo": "max",
        }
    if request.options["fsdp"]:
        formats = {
            "param_dtype": _SHORT["bfloat16" if plan.compute_dtype in FLOAT8_FORMATS else plan.compute_dtype],
            "reduce_dtype": _SHORT[plan.reductions.reduce_dtype],
            "buffer_dtype": _SHORT[plan.reductions.buffer_dtype],
        }
        constants += f"{_FORMATS} = {value_text(formats)}\n"
        fsdp = {"mixed_precision": Dotted(_FORMATS)}
        new = request.version.within(_PARALLELISM_SINCE, "")
        arguments |= {"parallelism_config": {"fsdp": fsdp}} if new else {"fsdp_config": fsdp}
    lines = "".join(f"        {name}={value_text(value)},\n" for name, value in arguments.items())
    body = f"    trainer = Trainer(\n{lines}        **arguments,\n    )\n"
    if plan.loss_scale is not None:
        sharded = request.options["fsdp"]
        imports += (
            "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
            if sharded
            else "from torch.amp import GradScaler\n"
        )
        made = call_text("ShardedGradScaler" if sharded else "GradScaler", grad_scaler_arguments(plan.loss_scale))
        body += f"{_SCALER}    trainer.state.scaler = {made.replace(chr(10), chr(10) + '    ')}\n"
    if plan.float32_matmul == "tf32":
        imports = f"import torch\n{imports}"
        constants = f'torch.set_float32_matmul_precision("high")\n{constants}'
    text = f"{imports}\n{constants}" if constants else imports
    return f"{text}\n\ndef make_trainer(model, train_dataloader, **arguments):\n{body}    return trainer\n"


def _read(settings: Settings, version: Version) -> Reading:
    call = settings.call("Trainer")
    if call is None:
        raise SettingsProblems([Problem((), "there is no call of Trainer(...) in this source")])
    given = call.kwargs.get("precision")
    name = given.last.lower() if isinstance(given, Dotted) else given
    findings = []
    if not isinstance(name, str):
        findings, name = [_DEFAULT], "amp_fp16"
    compute = _COMPUTE.get(name, "float32")
    stored_16 = {"float8_e4m3fn": "bfloat16"}.get(compute, compute)
    tf32 = settings.call("set_float32_matmul_precision")
    return nearest_plan(
        compute_dtype=compute,
        # Float8 has no autocast beside it: what is not multiplied in float8 has the weights' format.
        output_dtype="float32" if compute in FLOAT8_FORMATS else compute,
        loss_scale=_loss_scale(settings) if compute == "float16" else None,
        scaling="tensorwise" if compute in FLOAT8_FORMATS else None,
        float32_matmul="tf32" if tf32 and tf32.args and tf32.args[0] in ("high", "medium") else "ieee",
        reductions=_reductions(call, stored_16),
        findings=findings,
        loc=("Trainer", "precision"),
    )


def _loss_scale(settings: Settings) -> LossScale | None:
    for name in SCALER_NAMES:
        scaler = settings.call(name)
        if scaler is not None:
            return loss_scale_of(scaler)
    return loss_scale_of(Call("GradScaler", (), {}, 1))


def _reductions(call: Call, stored_16: str) -> Reductions:
    """Returns the formats of sums and buffers; all float32 without FSDP."""
    parallel = call.kwargs.get("parallelism_config")
    fsdp = parallel.get("fsdp") if isinstance(parallel, Mapping) else call.kwargs.get("fsdp_config")
    if not isinstance(fsdp, Mapping):
        return Reductions()
    mixed = fsdp.get("mixed_precision", "DEFAULT")
    if isinstance(mixed, Mapping):
        formats = {key: _DTYPES.get(value) for key, value in mixed.items() if isinstance(value, str)}
        compute = formats.get("param_dtype") or "float32"
        return Reductions(
            reduce_dtype=formats.get("reduce_dtype") or compute, buffer_dtype=formats.get("buffer_dtype") or "float32"
        )
    named = mixed.upper() if isinstance(mixed, str) else "DEFAULT"
    if named not in ("DEFAULT", "PURE", "FULL"):
        text = f"got mixed_precision {mixed!r}, expected DEFAULT, PURE or FULL, or a table of dtypes"
        raise SettingsProblems([Problem(("Trainer", "parallelism_config"), text)])
    return Reductions(
        reduce_dtype=stored_16 if named == "PURE" else "float32",
        buffer_dtype="float32" if named == "FULL" else stored_16,
    )


def _recognises(settings: Settings) -> float:
    call = settings.call("Trainer")
    if call is None:
        return 0.0
    value = call.kwargs.get("precision")
    name = value.last.lower() if isinstance(value, Dotted) else value
    if isinstance(name, str) and name in _COMPUTE:
        return 0.9
    return 0.5 if "train_dataloader" in call.kwargs and "device_train_microbatch_size" in call.kwargs else 0.0


COMPOSER = System(
    name="composer",
    title="Composer",
    summary=Text("precision of MosaicML Composer's Trainer", "MosaicML Composer 的 Trainer 的精度设置"),
    distribution="mosaicml",
    read_version="0.32.1",
    oldest="0.16",
    forms={"python": "composer_precision.py"},
    options=(
        Option(
            name="fsdp",
            choices=(0, 1),
            default=0,
            meaning=Text("1 where FSDP shards the model; 0 for none", "1 表示用 FSDP 对模型分片；0 表示不分片"),
        ),
    ),
    knobs=knob_table(
        Knob(
            key="Trainer.precision",
            kind="str",
            none=True,
            choices=tuple(_NAMES.values()),
            meaning=Text(
                "The format of autocast; None: amp_fp16 on a GPU, fp32 on a CPU.",
                "autocast 的格式；None 表示 GPU 上为 amp_fp16，CPU 上为 fp32。",
            ),
            source=_PRECISION,
        ),
        Knob(
            key="Trainer.precision_config",
            kind="any",
            none=True,
            meaning=Text(
                "Arguments of TransformerEngine's DelayedScaling, for amp_fp8.",
                "TransformerEngine 的 DelayedScaling 的参数，用于 amp_fp8。",
            ),
            source=_PRECISION,
        ),
        Knob(
            key="Trainer.parallelism_config",
            kind="any",
            none=True,
            since=_PARALLELISM_SINCE,
            instead="fsdp_config",
            meaning=Text('"fsdp": its formats, under mixed_precision.', '"fsdp"：格式写在 mixed_precision 下。'),
            source=_TRAINER,
        ),
        Knob(
            key="Trainer.fsdp_config",
            kind="any",
            none=True,
            until=_FSDP_CONFIG_UNTIL,
            instead='parallelism_config={"fsdp": ...}',
            meaning=Text("Formats of FSDP, under mixed_precision.", "FSDP 的格式，写在 mixed_precision 下。"),
            source=_TRAINER,
        ),
        *grad_scaler_knobs(),
        *grad_scaler_knobs("ShardedGradScaler"),
    ),
    refusals=(
        Refusal(
            when=lambda plan, request: plan.compute_dtype == "float8_e4m3fnuz",
            what=Text(
                "Its float8 is TransformerEngine's, for NVIDIA devices, which have no e4m3fnuz.",
                "其 float8 来自 TransformerEngine，面向 NVIDIA 设备，没有 e4m3fnuz。",
            ),
            instead=Text("Write float8_e4m3fn.", "请写 float8_e4m3fn。"),
            source=_PRECISION,
        ),
        Refusal(
            when=lambda plan, request: plan.scaling == "mx",
            what=Text(
                "amp_fp8 makes a DelayedScaling, and no argument reaches another recipe.",
                "amp_fp8 只创建 DelayedScaling，没有参数可以换成其他配方。",
            ),
            instead=Text("Export to transformer-engine or torchao.", "请导出到 transformer-engine 或 torchao。"),
            source=_PRECISION,
        ),
    ),
    losses=(
        Loss(
            paths=("modules*",),
            what=Text("One autocast serves all modules: islands are lost.", "所有模块共用一个 autocast：岛会丢失。"),
            instead=Text(
                "Wrap their forward in torch.autocast(device, enabled=False) and cast their inputs to float32.",
                "把它们的 forward 放进 torch.autocast(device, enabled=False)，并把输入转换为 float32。",
            ),
        ),
        Loss(
            paths=("scaling", "recipe"),
            what=Text(
                "amp_fp8 has one scale factor per tensor, and weights in float32.",
                "amp_fp8 每个张量一个缩放因子，权重为 float32。",
            ),
            instead=Text("Export to torchao for finer factors.", "如需更细的缩放因子，请导出到 torchao。"),
        ),
        Loss(
            paths=("policy.param_dtype", "weights.master"),
            what=Text("Weights stay in float32, which need no master weights.", "权重保持 float32，无需主权重。"),
        ),
        Loss(
            paths=("policy.output_dtype",),
            what=Text("Outputs leave in {after}.", "输出的格式为 {after}。"),
            instead=Text("Cast them in your model's forward.", "请在模型的 forward 中转换。"),
        ),
        Loss(
            paths=("reductions.reduce_dtype", "reductions.buffer_dtype"),
            when=lambda request: not request.options["fsdp"],
            what=Text(
                "Without FSDP gradients are reduced and buffers kept in float32.",
                "不使用 FSDP 时，梯度归约和缓冲区都是 float32。",
            ),
            instead=Text("Export with --fsdp 1.", "导出时使用 --fsdp 1。"),
        ),
        Loss(
            paths=("reductions.accumulate_dtype",),
            what=Text("Gradients are summed over batches in float32.", "梯度以 float32 跨批累加。"),
        ),
        *GRAD_SCALER_LOSSES,
        *RECORD_LOSSES,
    ),
    remarks=(
        Remark(
            when=lambda plan, request: plan.compute_dtype != "float32",
            what=Text("Composer refuses all but fp32 on a CPU.", "Composer 在 CPU 上只接受 fp32，其他设置会报错。"),
            source=_PRECISION,
        ),
        Remark(
            when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
            what=Text(
                "amp_fp8 is DelayedScaling without an autocast to bfloat16: factors come from earlier steps, and all "
                "that TransformerEngine's modules do not multiply is float32, unless FSDP casts the weights.",
                "amp_fp8 使用 DelayedScaling，且没有 bfloat16 的 autocast：缩放因子来自之前的步，除 TransformerEngine "
                "模块的乘法外都是 float32，除非由 FSDP 转换权重。",
            ),
            source=_PRECISION,
        ),
    ),
    write=_write,
    read=_read,
    recognises=_recognises,
)

# SPDX-License-Identifier: Apache-2.0
"""PyTorch FSDP1: `MixedPrecision` for `FullyShardedDataParallel`, with a ShardedGradScaler where gradients are float16.

Its `param_dtype` is our `compute_dtype`: the weights it shards stay in the format they were made in, float32 here.
"""

from __future__ import annotations

from floatwise.exporters.grad_scaler import SCALER_NAMES, grad_scaler_knobs
from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.python_text import call_text, torch_dtype
from floatwise.exporters.settings import Call, Dotted, Settings, SettingsProblems
from floatwise.exporters.shared_losses import GRAD_SCALER_LOSSES, RECORD_LOSSES
from floatwise.exporters.system import Finding, Loss, Reading, Remark, Request, System
from floatwise.exporters.torch_calls import DTYPE_CHOICES, cast_of_model, dtype_of, float32_matmul_of, scale_of
from floatwise.exporters.torch_source import (
    DEVICE_OPTION,
    FLOAT32_WEIGHTS_LOSS,
    IDLE_SCALE_LOSS,
    SCALER_OPTION,
    float8_refusal,
    scale_where_float16,
    scaler_source,
    tf32_line,
)
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.dtypes import SIXTEEN_BIT_FORMATS, STORE_FORMATS
from floatwise.plan.model import Plan, Reductions
from floatwise.plan.problems import Problem

__all__ = ["FSDP1"]

_CALL = "MixedPrecision"
_SOURCE = "torch/distributed/fsdp/api.py, 2.13.0"
_DTYPE_ARGUMENTS = ("param_dtype", "reduce_dtype", "buffer_dtype")

_HEADER = Text(
    "# FullyShardedDataParallel(model, mixed_precision=MIXED_PRECISION, use_orig_params=True); keep the model in\n"
    "# float32 before that: the shards are the master weights that the optimizer updates.\n",
    "# FullyShardedDataParallel(model, mixed_precision=MIXED_PRECISION, use_orig_params=True)；\n"
    "# 此前模型保持 float32：分片后的权重就是优化器更新的主权重。\n",
)
_LOW_GRADS = Finding(
    "low-precision-grads",
    (_CALL, "keep_low_precision_grads"),
    Text(
        "Gradients reach the optimizer in param_dtype: sums over batches round to it, and torch.optim.AdamW raises, "
        "because its states are float32.",
        "梯度以 param_dtype 进入优化器：跨批累加按该格式舍入，且 torch.optim.AdamW 会报错，因为其状态为 float32。",
    ),
    Text("Delete keep_low_precision_grads=True.", "删除 keep_low_precision_grads=True。"),
)
_UNCAST_INPUTS = Finding(
    "uncast-inputs",
    (_CALL, "cast_root_forward_inputs"),
    Text(
        "Inputs keep their format while weights are cast: products of the two raise a dtype mismatch.",
        "输入保持原格式而权重被转换：两者相乘会报数据类型不匹配。",
    ),
    Text(
        "Delete cast_root_forward_inputs=False, or cast the inputs yourself.",
        "删除 cast_root_forward_inputs=False，或自行转换输入。",
    ),
)


def _write(plan: Plan, request: Request) -> str:
    precision = call_text(
        _CALL,
        {
            "param_dtype": torch_dtype(plan.compute_dtype),
            "reduce_dtype": torch_dtype(plan.reductions.reduce_dtype),
            "buffer_dtype": torch_dtype(plan.reductions.buffer_dtype),
        },
    )
    scale = scale_where_float16(plan, plan.compute_dtype, plan.reductions.reduce_dtype)
    line, scaler = scaler_source(scale, request, sharded=True) if scale else ("", "")
    ours, theirs = (line, "") if line.startswith("import ") else ("", line)
    text = f"{ours}import torch\nfrom torch.distributed.fsdp import {_CALL}\n{theirs}\n{_HEADER}"
    text += f"MIXED_PRECISION = {precision}\n"
    if scaler:
        text += f"SCALER = {scaler}\n"
    return text + tf32_line(plan)


def _call(settings: Settings) -> Call | None:
    """Returns FSDP's `MixedPrecision`; Lightning's plugin of that name takes a text."""
    calls = [call for call in settings.calls if call.name == _CALL and not isinstance(_first(call), str)]
    return calls[0] if calls else None


def _first(call: Call) -> object:
    value = call.args[0] if call.args else call.kwargs.get("precision")
    return None if isinstance(value, Dotted) else value


def _read(settings: Settings, version: Version) -> Reading:
    call = _call(settings)
    if call is None:
        raise SettingsProblems([Problem((), f"there is no call of {_CALL}(...) in this source")])
    values = {**dict(zip(_DTYPE_ARGUMENTS, call.args, strict=False)), **call.kwargs}
    cast = cast_of_model(settings)
    stored = cast.dtype if cast and cast.dtype in STORE_FORMATS else "float32"
    compute = dtype_of(values.get("param_dtype")) or stored
    reduced = dtype_of(values.get("reduce_dtype")) or compute
    low = values.get("keep_low_precision_grads") is True
    uncast = values.get("cast_root_forward_inputs") is False and values.get("cast_forward_inputs") is not True
    return nearest_plan(
        compute_dtype=compute,
        param_dtype=stored,
        output_dtype=compute,
        reductions=Reductions(
            reduce_dtype=reduced,
            accumulate_dtype=compute if low else stored,
            buffer_dtype=dtype_of(values.get("buffer_dtype")) or stored,
        ),
        loss_scale=scale_of(settings, float16="float16" in (compute, reduced, stored)),
        float32_matmul=float32_matmul_of(settings),
        findings=[finding for finding, there in ((_LOW_GRADS, low), (_UNCAST_INPUTS, uncast)) if there],
        loc=cast.loc if cast and stored != "float32" else (_CALL, "param_dtype"),
    )


def _dtype_knob(name: str, meaning: Text) -> Knob:
    return Knob(key=f"{_CALL}.{name}", kind="name", none=True, choices=DTYPE_CHOICES, meaning=meaning, source=_SOURCE)


def _bool_knob(name: str, default: bool, meaning: Text) -> Knob:
    return Knob(key=f"{_CALL}.{name}", kind="bool", default=default, meaning=meaning, source=_SOURCE)


FSDP1 = System(
    name="fsdp1",
    title="PyTorch FSDP1",
    summary=Text(
        "MixedPrecision for torch.distributed.fsdp.FullyShardedDataParallel",
        "用于 torch.distributed.fsdp.FullyShardedDataParallel 的 MixedPrecision",
    ),
    distribution="torch",
    read_version="2.13.0",
    oldest="2.6",
    forms={"python": "fsdp1_precision.py"},
    options=(DEVICE_OPTION, SCALER_OPTION),
    knobs=knob_table(
        _dtype_knob("param_dtype", Text("The format the unsharded weights compute in.", "未分片权重参与计算的格式。")),
        _dtype_knob(
            "reduce_dtype",
            Text(
                "The format gradients are reduced in; None: param_dtype.",
                "梯度归约的格式；None 表示与 param_dtype 相同。",
            ),
        ),
        _dtype_knob("buffer_dtype", Text("The format of buffers; None: unchanged.", "缓冲区的格式；None 表示不变。")),
        _bool_knob(
            "keep_low_precision_grads",
            False,
            Text("Whether gradients stay in 16 bits for the optimizer.", "梯度是否以 16 位保留给优化器。"),
        ),
        _bool_knob(
            "cast_forward_inputs",
            False,
            Text("Whether inner modules cast their inputs to param_dtype.", "内层模块是否把输入转换为 param_dtype。"),
        ),
        _bool_knob(
            "cast_root_forward_inputs",
            True,
            Text("Whether the root casts its inputs to param_dtype.", "根模块是否把输入转换为 param_dtype。"),
        ),
        *(row for name in SCALER_NAMES for row in grad_scaler_knobs(name)),
    ),
    closed=(_CALL,),
    others=(f"{_CALL}._module_classes_to_ignore",),
    refusals=(float8_refusal(_CALL, _SOURCE),),
    losses=(
        Loss(
            paths=("modules*",),
            what=Text(
                "FSDP1 leaves out classes, not paths (_module_classes_to_ignore): islands are lost.",
                "FSDP1 只能按类（_module_classes_to_ignore）而不能按路径排除模块：岛会丢失。",
            ),
            instead=Text(
                "Wrap the modules that stay in float32 in an FSDP of their own first, with "
                "MixedPrecision(torch.float32, cast_forward_inputs=True).",
                "先用 MixedPrecision(torch.float32, cast_forward_inputs=True) 单独包装需要保持 float32 的模块。",
            ),
        ),
        FLOAT32_WEIGHTS_LOSS,
        Loss(
            paths=("policy.output_dtype",),
            what=Text("FSDP1 hands outputs on in the compute format: {after}.", "FSDP1 的输出保持计算格式：{after}。"),
            instead=Text(
                "Cast the outputs before the loss: outputs.float().", "在计算损失前转换输出：outputs.float()。"
            ),
        ),
        Loss(
            paths=("reductions.accumulate_dtype",),
            what=Text("Gradients of the shards are summed over batches in float32.", "分片的梯度以 float32 跨批累加。"),
        ),
        IDLE_SCALE_LOSS,
        *GRAD_SCALER_LOSSES,
        *RECORD_LOSSES,
    ),
    remarks=(
        Remark(
            when=lambda plan, request: plan.compute_dtype in SIXTEEN_BIT_FORMATS,
            what=Text(
                "Every operator of a module computes in this format: no autocast list keeps softmax, norms or losses "
                "in float32. Compute the loss on outputs in float32.",
                "模块内所有算子都以该格式计算：softmax、归一化不会保持 float32。请在 float32 输出上计算损失。",
            ),
            source="measured on torch 2.13.0",
        ),
        Remark(
            when=lambda plan, request: plan.compute_dtype in SIXTEEN_BIT_FORMATS,
            what=Text(
                "Inside no_sync() gradients are summed over batches in param_dtype, whatever reduce_dtype says.",
                "在 no_sync() 中，无论 reduce_dtype 是什么，梯度都以 param_dtype 跨批累加。",
            ),
            source="measured on torch 2.13.0",
        ),
        Remark(
            when=lambda plan, request: (
                plan.compute_dtype in SIXTEEN_BIT_FORMATS and plan.reductions.buffer_dtype == "float32"
            ),
            what=Text(
                "A BatchNorm in the same FSDP module raises a dtype mismatch on CPU, because its buffers are float32: "
                "give an auto_wrap_policy, with which FSDP keeps batch norms in float32.",
                "同一 FSDP 模块内的 BatchNorm 缓冲区为 float32，在 CPU 上会报数据类型不匹配："
                "请给出 auto_wrap_policy，FSDP 会让其中的 BatchNorm 保持 float32。",
            ),
            source="torch/distributed/fsdp/api.py, 2.13.0; measured",
        ),
    ),
    write=_write,
    read=_read,
    recognises=lambda settings: 0.9 if _call(settings) else 0.0,
)

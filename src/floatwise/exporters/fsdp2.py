# SPDX-License-Identifier: Apache-2.0
"""PyTorch FSDP2: `MixedPrecisionPolicy` for `fully_shard`, with a GradScaler where gradients are float16.

Its words are not ours: FSDP's `param_dtype` is what products are computed in (our `compute_dtype`), while the weights
it shards stay in the format they were made in, which is float32 here: they are the master weights.
"""

from __future__ import annotations

from floatwise.exporters.grad_scaler import SCALER_NAMES, grad_scaler_knobs
from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.python_text import call_text, torch_dtype
from floatwise.exporters.settings import Settings, SettingsProblems
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

__all__ = ["FSDP2"]

_POLICY = "MixedPrecisionPolicy"
_POSITIONS = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
_SOURCE = "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, 2.13.0"

_HEADER = Text(
    "# fully_shard(module, mp_policy=MIXED_PRECISION) for each block, then for the model; keep the model in float32\n"
    "# before that: the shards are the master weights that the optimizer updates.\n",
    "# 对每个模块块先调用 fully_shard(module, mp_policy=MIXED_PRECISION)，最后对整个模型调用；此前模型保持 float32：\n"
    "# 分片后的权重就是优化器更新的主权重。\n",
)


_UNCAST_INPUTS = Finding(
    "uncast-inputs",
    (_POLICY, "cast_forward_inputs"),
    Text(
        "Inputs keep their format while weights are cast: products of the two raise a dtype mismatch.",
        "输入保持原格式而权重被转换：两者相乘会报数据类型不匹配。",
    ),
    Text(
        "Delete cast_forward_inputs=False, or cast the inputs yourself.",
        "删除 cast_forward_inputs=False，或自行转换输入。",
    ),
)


def _write(plan: Plan, request: Request) -> str:
    policy = call_text(
        _POLICY,
        {
            "param_dtype": torch_dtype(plan.compute_dtype),
            "reduce_dtype": torch_dtype(plan.reductions.reduce_dtype),
            "output_dtype": torch_dtype(plan.policy.output_dtype),
            "cast_forward_inputs": True,
        },
    )
    scale = scale_where_float16(plan, plan.compute_dtype, plan.policy.output_dtype, plan.reductions.reduce_dtype)
    line, scaler = scaler_source(scale, request) if scale else ("", "")
    text = f"{line}import torch\nfrom torch.distributed.fsdp import {_POLICY}\n\n{_HEADER}MIXED_PRECISION = {policy}\n"
    if scaler:
        text += f"SCALER = {scaler}\n"
    return text + tf32_line(plan)


def _read(settings: Settings, version: Version) -> Reading:
    call = settings.call(_POLICY)
    if call is None:
        raise SettingsProblems([Problem((), f"there is no call of {_POLICY}(...) in this source")])
    given = {**dict(zip(_POSITIONS, call.args, strict=False)), **call.kwargs}
    cast = cast_of_model(settings)
    stored = cast.dtype if cast and cast.dtype in STORE_FORMATS else "float32"
    compute = dtype_of(given.get("param_dtype")) or stored
    reduced = dtype_of(given.get("reduce_dtype")) or compute
    return nearest_plan(
        compute_dtype=compute,
        param_dtype=stored,
        output_dtype=dtype_of(given.get("output_dtype")) or compute,
        # The sharded gradients that are summed have the format of the weights as they were made.
        reductions=Reductions(reduce_dtype=reduced, accumulate_dtype=stored, buffer_dtype=stored),
        loss_scale=scale_of(settings, float16="float16" in (compute, reduced, stored)),
        float32_matmul=float32_matmul_of(settings),
        findings=[_UNCAST_INPUTS] if given.get("cast_forward_inputs") is False else [],
        loc=cast.loc if cast and stored != "float32" else (_POLICY, "param_dtype"),
    )


FSDP2 = System(
    name="fsdp2",
    title="PyTorch FSDP2",
    summary=Text(
        "MixedPrecisionPolicy for torch.distributed.fsdp.fully_shard",
        "用于 torch.distributed.fsdp.fully_shard 的 MixedPrecisionPolicy",
    ),
    distribution="torch",
    read_version="2.13.0",
    oldest="2.6",
    forms={"python": "fsdp2_precision.py"},
    options=(DEVICE_OPTION, SCALER_OPTION),
    knobs=knob_table(
        *(
            Knob(
                key=f"{_POLICY}.{name}",
                kind="name",
                none=True,
                choices=DTYPE_CHOICES,
                meaning=meaning,
                source=_SOURCE,
            )
            for name, meaning in (
                ("param_dtype", Text("The format the unsharded weights compute in.", "未分片权重参与计算的格式。")),
                (
                    "reduce_dtype",
                    Text(
                        "The format gradients are reduced in; None: param_dtype.",
                        "梯度归约的格式；None 表示与 param_dtype 相同。",
                    ),
                ),
                (
                    "output_dtype",
                    Text(
                        "The format of forward's floating outputs; None: unchanged.",
                        "forward 浮点输出的格式；None 表示不变。",
                    ),
                ),
            )
        ),
        Knob(
            key=f"{_POLICY}.cast_forward_inputs",
            kind="bool",
            default=True,
            meaning=Text("Whether floating inputs are cast to param_dtype.", "是否把浮点输入转换为 param_dtype。"),
            source=_SOURCE,
        ),
        *(row for name in SCALER_NAMES for row in grad_scaler_knobs(name)),
    ),
    closed=(_POLICY,),
    refusals=(float8_refusal(_POLICY, _SOURCE),),
    losses=(
        Loss(
            paths=("modules*",),
            what=Text("One policy serves all modules: islands are lost.", "所有模块共用一个策略：岛会丢失。"),
            instead=Text(
                "Call fully_shard on the modules that stay in float32 first, with a MixedPrecisionPolicy of their own.",
                "先用单独的 MixedPrecisionPolicy 对需要保持 float32 的模块调用 fully_shard。",
            ),
        ),
        FLOAT32_WEIGHTS_LOSS,
        Loss(
            paths=("reductions.accumulate_dtype",),
            what=Text("Gradients of the shards are summed over batches in float32.", "分片的梯度以 float32 跨批累加。"),
        ),
        Loss(
            paths=("reductions.buffer_dtype",),
            what=Text("FSDP2 leaves buffers as they are: float32.", "FSDP2 不改变缓冲区：仍为 float32。"),
            instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
        ),
        IDLE_SCALE_LOSS,
        *GRAD_SCALER_LOSSES,
        *RECORD_LOSSES,
    ),
    remarks=(
        Remark(
            when=lambda plan, request: plan.compute_dtype in SIXTEEN_BIT_FORMATS,
            what=Text(
                "Under MixedPrecisionPolicy every operator of a module computes in this format: no autocast list "
                "keeps softmax, norms or losses in float32. Compute the loss on outputs in float32.",
                "在 MixedPrecisionPolicy 下，模块内所有算子都以该格式计算：softmax、归一化不会保持 float32。"
                "请在 float32 输出上计算损失。",
            ),
            source="measured on torch 2.13.0",
        ),
        Remark(
            when=lambda plan, request: plan.compute_dtype in SIXTEEN_BIT_FORMATS,
            what=Text(
                "With set_requires_gradient_sync(False) gradients are summed over batches in reduce_dtype and not in "
                "float32.",
                "使用 set_requires_gradient_sync(False) 时，梯度以 reduce_dtype 而不是 float32 跨批累加。",
            ),
            source="measured on torch 2.13.0; torch/distributed/fsdp/_fully_shard/_fsdp_api.py",
        ),
        Remark(
            when=lambda plan, request: plan.compute_dtype in SIXTEEN_BIT_FORMATS,
            what=Text(
                "A BatchNorm raises a dtype mismatch on CPU, where its buffers are float32 and its weights are not: "
                "give it a fully_shard without a policy.",
                "BatchNorm 的缓冲区为 float32 而权重不是，在 CPU 上会报数据类型不匹配："
                "请对其单独调用不带策略的 fully_shard。",
            ),
            source="measured on torch 2.13.0; pytorch/pytorch#146114",
        ),
    ),
    write=_write,
    read=_read,
    recognises=lambda settings: 0.9 if settings.call(_POLICY) else 0.0,
)

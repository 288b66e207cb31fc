# SPDX-License-Identifier: Apache-2.0
"""PyTorch FSDP2: `MixedPrecisionPolicy` for `fully_shard`, with a GradScaler where gradients are float16.

Its words are not ours: FSDP's `param_dtype` is what products are computed in (our `compute_dtype`), while the weights
it shards stay in the format they were made in, which is float32 here: they are the master weights.
"""

from __future__ import annotations

from floatwise.exporters.grad_scaler import grad_scaler_arguments, grad_scaler_knobs, loss_scale_of
from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.python_text import call_text, torch_dtype
from floatwise.exporters.settings import Dotted, Settings, SettingsProblems
from floatwise.exporters.shared_losses import GRAD_SCALER_LOSSES, RECORD_LOSSES
from floatwise.exporters.system import Loss, Reading, Refusal, Remark, Request, System
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS, SIXTEEN_BIT_FORMATS, STORE_FORMATS
from floatwise.plan.model import Plan, Reductions
from floatwise.plan.problems import Problem

__all__ = ["FSDP2"]

_POLICY = "MixedPrecisionPolicy"
_SOURCE = "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, 2.13.0"
_DTYPES = tuple(f"torch.{name}" for name in STORE_FORMATS)

_HEADER = Text(
    "# fully_shard(module, mp_policy=MIXED_PRECISION) for each block, then for the model; keep the model in float32\n"
    "# before that: the shards are the master weights that the optimizer updates.\n",
    "# 对每个模块块先调用 fully_shard(module, mp_policy=MIXED_PRECISION)，最后对整个模型调用；此前模型保持 float32：\n"
    "# 分片后的权重就是优化器更新的主权重。\n",
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
    text = f"import torch\nfrom torch.distributed.fsdp import {_POLICY}\n\n{_HEADER}MIXED_PRECISION = {policy}\n"
    if plan.loss_scale is not None:
        scaler = call_text("torch.amp.GradScaler", grad_scaler_arguments(plan.loss_scale), "cuda")
        text += f"SCALER = {scaler}\n"
    return text


def _read(settings: Settings, version: Version) -> Reading:
    call = settings.call(_POLICY)
    if call is None:
        raise SettingsProblems([Problem((), f"there is no call of {_POLICY}(...) in this source")])
    compute = _dtype(call.kwargs.get("param_dtype")) or "float32"
    scaler = settings.call("GradScaler")
    return nearest_plan(
        compute_dtype=compute,
        output_dtype=_dtype(call.kwargs.get("output_dtype")) or compute,
        reductions=Reductions(reduce_dtype=_dtype(call.kwargs.get("reduce_dtype")) or compute),
        loss_scale=loss_scale_of(scaler) if scaler else None,
        loc=(_POLICY, "param_dtype"),
    )


def _dtype(value: object) -> str | None:
    return value.last if isinstance(value, Dotted) else None


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
    knobs=knob_table(
        *(
            Knob(
                key=f"{_POLICY}.{name}",
                kind="name",
                none=True,
                choices=tuple(Dotted(d) for d in _DTYPES),
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
        *grad_scaler_knobs(),
    ),
    closed=(_POLICY,),
    refusals=(
        Refusal(
            when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
            what=Text(
                "MixedPrecisionPolicy casts whole tensors and has no float8.",
                "MixedPrecisionPolicy 转换整个张量，不支持 float8。",
            ),
            instead=Text(
                "Export to torchao as well, and convert the model before sharding it.",
                "请同时导出到 torchao，并在分片前转换模型。",
            ),
            source=_SOURCE,
        ),
    ),
    losses=(
        Loss(
            paths=("modules*",),
            what=Text("One policy serves all modules: islands are lost.", "所有模块共用一个策略：岛会丢失。"),
            instead=Text(
                "Call fully_shard on the modules that stay in float32 first, with a MixedPrecisionPolicy of their own.",
                "先用单独的 MixedPrecisionPolicy 对需要保持 float32 的模块调用 fully_shard。",
            ),
        ),
        Loss(
            paths=("policy.param_dtype", "weights.master", "recipe"),
            what=Text(
                "The weights stay in float32 and are sharded: the shards are the master weights.",
                "权重保持 float32 并被分片：分片就是主权重。",
            ),
        ),
        Loss(
            paths=("float32_matmul",),
            what=Text("How float32 products are computed is not part of it.", "float32 乘法的计算方式不在其中。"),
            instead=Text(
                'Call torch.set_float32_matmul_precision("high") for TF32.',
                '如需 TF32，请调用 torch.set_float32_matmul_precision("high")。',
            ),
        ),
        Loss(
            paths=("reductions.accumulate_dtype",),
            what=Text("Gradients of the shards are summed over batches in float32.", "分片的梯度以 float32 跨批累加。"),
        ),
        Loss(
            paths=("reductions.buffer_dtype",),
            what=Text("FSDP2 leaves buffers as they are: float32.", "FSDP2 不改变缓冲区：仍为 float32。"),
            instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
        ),
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
    ),
    write=_write,
    read=_read,
    recognises=lambda settings: 0.9 if settings.call(_POLICY) else 0.0,
)

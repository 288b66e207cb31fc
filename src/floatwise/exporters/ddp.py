# SPDX-License-Identifier: Apache-2.0
"""PyTorch DDP: autocast around the forward, and a communication hook where gradients are reduced in 16 bits."""

from __future__ import annotations

from floatwise.exporters.grad_scaler import SCALER_NAMES, grad_scaler_knobs
from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.python_text import value_text
from floatwise.exporters.settings import Dotted, Settings, SettingsProblems
from floatwise.exporters.shared_losses import GRAD_SCALER_LOSSES, RECORD_LOSSES
from floatwise.exporters.system import Loss, Reading, Remark, Request, System
from floatwise.exporters.torch_calls import call_loc, cast_of_model, float32_matmul_of, scale_of
from floatwise.exporters.torch_regions import compute_of
from floatwise.exporters.torch_source import (
    AUTOCAST_OUTPUT_LOSS,
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

__all__ = ["DDP"]

_HOOKS = {"bfloat16": "bf16_compress_hook", "float16": "fp16_compress_hook"}
_HOOKS_MODULE = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
_SOURCE = "torch/nn/parallel/distributed.py, 2.13.0"
_WRAPPERS = ("DistributedDataParallel", "DDP")

_FORWARD = Text(
    "Around forward and loss; backward stays outside. The model stays in float32.",
    "包住前向与损失；反向在其外。模型保持 float32。",
)
_REDUCE = Text(
    "Once, after DistributedDataParallel(model): gradients are summed over processes in {dtype}.",
    "在 DistributedDataParallel(model) 之后调用一次：梯度以 {dtype} 跨进程求和。",
)


def _write(plan: Plan, request: Request) -> str:
    scale = scale_where_float16(plan, plan.compute_dtype, _reduced_here(plan, request))
    line, scaler = scaler_source(scale, request) if scale else ("", "")
    hook = _HOOKS.get(_reduced_here(plan, request))
    device = value_text(request.options["device"])
    how = f"dtype=torch.{plan.compute_dtype}" if plan.compute_dtype in SIXTEEN_BIT_FORMATS else "enabled=False"
    text = f"{line}import torch\n" + (f"from {_HOOKS_MODULE} import {hook}\n" if hook else "")
    text += f'\n\ndef autocast():\n    """{_FORWARD}"""\n    return torch.autocast({device}, {how})\n'
    if hook:
        said = _REDUCE.format(dtype=plan.reductions.reduce_dtype)
        text += f'\n\ndef compress_gradients(ddp_model):\n    """{said}"""\n'
        text += f"    ddp_model.register_comm_hook(state=None, hook={hook})\n"
    after = (f"SCALER = {scaler}\n" if scaler else "") + tf32_line(plan)
    return text + (f"\n\n{after}" if after else "")


def _reduced_here(plan: Plan, request: Request) -> str:
    reduced = plan.reductions.reduce_dtype
    # DDP takes bf16_compress_hook with NCCL and XCCL only.
    impossible = reduced == "bfloat16" and request.options["device"] == "cpu"
    return "float32" if impossible else reduced


def _read(settings: Settings, version: Version) -> Reading:
    cast = cast_of_model(settings)
    stored = cast.dtype if cast and cast.dtype in STORE_FORMATS else "float32"
    region = compute_of(settings, stored)
    reduced = _reduced(settings) or stored
    return nearest_plan(
        compute_dtype=region.dtype,
        param_dtype=stored,
        output_dtype=region.dtype,
        reductions=Reductions(reduce_dtype=reduced, accumulate_dtype=stored, buffer_dtype=stored),
        loss_scale=scale_of(settings, float16="float16" in (region.dtype, reduced, stored)),
        float32_matmul=float32_matmul_of(settings),
        findings=region.findings,
        loc=cast.loc if cast and stored != "float32" else region.loc,
    )


def _reduced(settings: Settings) -> str | None:
    call = settings.call("register_comm_hook")
    if call is None:
        return None
    hook = call.args[1] if len(call.args) > 1 else call.kwargs.get("hook")
    last = hook.last if isinstance(hook, Dotted) else ""
    found = next((dtype for dtype, name in _HOOKS.items() if name == last), None)
    if last.startswith("allreduce"):
        return None
    if found is None:
        raise SettingsProblems(
            [
                Problem(
                    call_loc(settings, call),
                    f"got the hook {hook!r}; the formats of {' and '.join(_HOOKS.values())} are known here, those of "
                    "others are not: read the configuration without it",
                )
            ]
        )
    return found


def _recognises(settings: Settings) -> float:
    return 0.6 if settings.call("register_comm_hook") or any(settings.call(name) for name in _WRAPPERS) else 0.0


DDP = System(
    name="ddp",
    title="PyTorch DDP",
    summary=Text(
        "autocast, a gradient communication hook and a GradScaler for DistributedDataParallel",
        "用于 DistributedDataParallel 的 autocast、梯度通信钩子与 GradScaler",
    ),
    distribution="torch",
    read_version="2.13.0",
    oldest="2.6",
    forms={"python": "ddp_precision.py"},
    options=(DEVICE_OPTION, SCALER_OPTION),
    knobs=knob_table(
        Knob(
            key="register_comm_hook.hook",
            kind="name",
            meaning=Text("What sums a bucket of gradients over processes.", "对一桶梯度跨进程求和的钩子。"),
            source=_SOURCE,
        ),
        Knob(
            key="register_comm_hook.state",
            kind="any",
            meaning=Text("What the hook keeps; None for those that only compress.", "钩子的状态；仅做压缩时为 None。"),
            source=_SOURCE,
        ),
        *(row for name in SCALER_NAMES for row in grad_scaler_knobs(name)),
    ),
    closed=("register_comm_hook",),
    refusals=(float8_refusal("torch.autocast", "torch/amp/autocast_mode.py, 2.13.0"),),
    losses=(
        Loss(
            paths=("modules*",),
            what=Text(
                "autocast knows operators, not modules: islands are lost.", "autocast 只认算子，不认模块：岛会丢失。"
            ),
            instead=Text(
                "Export to torch-amp too: its `prepare` makes them, before the model is wrapped in DDP.",
                "请同时导出到 torch-amp：在用 DDP 包装模型之前由其 `prepare` 建立岛。",
            ),
        ),
        FLOAT32_WEIGHTS_LOSS,
        AUTOCAST_OUTPUT_LOSS,
        Loss(
            paths=("reductions.reduce_dtype",),
            what=Text(
                "DDP refuses bf16_compress_hook outside NCCL and XCCL: gradients are summed in float32.",
                "除 NCCL 与 XCCL 外，DDP 不接受 bf16_compress_hook：梯度以 float32 求和。",
            ),
            when=lambda request: request.options["device"] == "cpu",
        ),
        Loss(
            paths=("reductions.accumulate_dtype",),
            what=Text(
                "Gradients have the format of the weights and are summed over batches in it: float32.",
                "梯度与权重格式相同，并以该格式跨批累加：float32。",
            ),
        ),
        Loss(
            paths=("reductions.buffer_dtype",),
            what=Text(
                "Neither DDP nor autocast changes buffers: float32.", "DDP 与 autocast 都不改变缓冲区：float32。"
            ),
            instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
        ),
        IDLE_SCALE_LOSS,
        *GRAD_SCALER_LOSSES,
        *RECORD_LOSSES,
    ),
    remarks=(
        Remark(
            when=lambda plan, request: plan.reductions.reduce_dtype == "float16",
            what=Text(
                "fp16_compress_hook casts scaled gradients: what passes 65504 there becomes infinite and skips a step.",
                "fp16_compress_hook 转换的是缩放后的梯度：超过 65504 的值会变为无穷大，从而跳过一步。",
            ),
            source="torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py, 2.13.0; measured",
        ),
    ),
    write=_write,
    read=_read,
    recognises=_recognises,
)

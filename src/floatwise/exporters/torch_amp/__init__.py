# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch: one module that holds nearly the whole plan; and any script that uses torch.amp, as far as literal."""

from __future__ import annotations

from floatwise.exporters.grad_scaler import SCALER_NAMES, grad_scaler_knobs
from floatwise.exporters.knob import knob_table
from floatwise.exporters.settings import Settings
from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.exporters.system import Loss, Remark, System
from floatwise.exporters.torch_amp.constants import is_our_module
from floatwise.exporters.torch_amp.read import read
from floatwise.exporters.torch_amp.write import write
from floatwise.exporters.torch_calls import cast_of_model
from floatwise.exporters.torch_source import DEVICE_OPTION, FLOAT32_WEIGHTS_LOSS, IDLE_SCALE_LOSS, float8_refusal
from floatwise.language import Text

__all__ = ["TORCH_AMP"]

# Scripts of trainers call these too, so they outbid this system; convention.
_WEAKEST = 0.3
_AMP_CALLS = ("autocast", *SCALER_NAMES)


def _recognises(settings: Settings) -> float:
    if is_our_module(settings):
        return 0.95
    told = any(call.name in _AMP_CALLS for call in settings.calls) or cast_of_model(settings)
    return _WEAKEST if told else 0.0


TORCH_AMP = System(
    name="torch-amp",
    title="PyTorch",
    summary=Text(
        "a module with autocast, islands and a loss scaler, for a training loop of your own",
        "供自己的训练循环使用的模块：autocast、岛与损失缩放",
    ),
    distribution="torch",
    read_version="2.13.0",
    oldest="2.6",
    forms={"python": "precision.py"},
    options=(DEVICE_OPTION,),
    knobs=knob_table(*(row for name in SCALER_NAMES for row in grad_scaler_knobs(name))),
    refusals=(float8_refusal("torch.autocast", "torch/amp/autocast_mode.py, 2.13.0"),),
    losses=(
        Loss(
            paths=(*FLOAT32_WEIGHTS_LOSS.paths, "modules*.policy.param_dtype"),
            what=FLOAT32_WEIGHTS_LOSS.what,
            instead=FLOAT32_WEIGHTS_LOSS.instead,
        ),
        IDLE_SCALE_LOSS,
        Loss(
            paths=("loss_scale.growth", "loss_scale.headroom_bits"),
            what=Text(
                "The scale grows after every growth_interval good steps without looking for room, up to its ceiling: a "
                "step is skipped each time that is too far.",
                "每连续 growth_interval 步正常就增大（不超过上限），不看是否留有余量：每次增大过头都会跳过一步。",
            ),
            instead=Text(
                "fw.torch.LossScaler grows where gradients leave room and can be passed in its place.",
                "fw.torch.LossScaler 仅在梯度留有余量时增大，可以直接替换。",
            ),
        ),
        Loss(
            paths=("reductions.reduce_dtype",),
            what=Text(
                "The module sums nothing over processes; DDP sums gradients in float32.",
                "该模块不涉及跨进程求和；DDP 以 float32 对梯度求和。",
            ),
            instead=Text("Export to ddp for a hook that compresses them.", "导出到 ddp 可得到压缩梯度的通信钩子。"),
        ),
        Loss(
            paths=("reductions.accumulate_dtype",),
            what=Text(
                "Gradients of float32 weights are summed over batches in float32.",
                "float32 权重的梯度以 float32 跨批累加。",
            ),
        ),
        Loss(
            paths=("reductions.buffer_dtype",),
            what=Text("autocast leaves buffers as they are: float32.", "autocast 不改变缓冲区：仍为 float32。"),
            instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
        ),
        *RECORD_LOSSES,
    ),
    remarks=(
        Remark(
            when=lambda plan, request: request.options["device"] == "cpu" and plan.compute_dtype != "float32",
            what=Text(
                "CPU autocast has lists of its own: softmax, layer_norm and sums compute in 16 bits there, and in "
                "float32 on CUDA.",
                "CPU 的 autocast 列表不同：softmax、layer_norm 与求和在 CPU 上以 16 位计算，"
                "在 CUDA 上以 float32 计算。",
            ),
            source="ATen/autocast_mode.h, 2.13.0; measured",
        ),
    ),
    write=write,
    read=read,
    recognises=_recognises,
)

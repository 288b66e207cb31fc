# SPDX-License-Identifier: Apache-2.0
"""Losses that many systems share: what describes the plan's origin, islands, and the scale of PyTorch's GradScaler."""

from __future__ import annotations

from floatwise.exporters.system import Loss
from floatwise.language import Text

__all__ = ["GRAD_SCALER_LOSSES", "RECORD_LOSSES"]

RECORD_LOSSES = (
    Loss(
        paths=("target", "script", "evidence*", "loss_scale.window_log2", "modules*.reason"),
        what=Text(
            "Where the plan comes from (device, script, evidence, window, reasons) is not part of this configuration.",
            "计划的来历（设备、脚本、依据、窗口、理由）不属于该配置。",
        ),
        instead=Text("Keep precision.toml beside it.", "请将 precision.toml 与它放在一起。"),
        is_record=True,
    ),
)
"""For every system: what changes nothing in training."""

GRAD_SCALER_LOSSES = (
    Loss(
        paths=("loss_scale.mode", "loss_scale.growth_interval"),
        what=Text(
            "GradScaler has no static scale: growth is put off beyond any training, and an overflow still halves it.",
            "GradScaler 没有静态缩放：增大被推迟到训练结束之后，但溢出仍会使其减半。",
        ),
        instead=Text('Use fw.torch.LossScaler(mode="static").', '使用 fw.torch.LossScaler(mode="static")。'),
    ),
    Loss(
        paths=("loss_scale.floor",),
        what=Text(
            "GradScaler has no floor: after overflows in a row its scale falls to 0, and the next step writes NaN into "
            "the weights.",
            "GradScaler 没有下限：连续溢出后缩放系数会降到 0，下一步就会把 NaN 写入权重。",
        ),
        instead=Text(
            "fw.torch.LossScaler is a GradScaler with a floor and can be passed in its place.",
            "fw.torch.LossScaler 是带下限的 GradScaler，可以直接替换。",
        ),
    ),
    Loss(
        paths=("loss_scale.ceiling",),
        what=Text(
            "GradScaler has no ceiling: the scale doubles until something overflows, and that step is skipped.",
            "GradScaler 没有上限：缩放系数不断翻倍，直到溢出而跳过一步。",
        ),
        instead=Text("Use fw.torch.LossScaler.", "使用 fw.torch.LossScaler。"),
    ),
    Loss(
        paths=("loss_scale.growth", "loss_scale.headroom_bits"),
        what=Text(
            "The scale grows after every growth_interval good steps without looking for room: a step is skipped each "
            "time that is too far.",
            "每连续 growth_interval 步正常就增大，不看是否留有余量：每次增大过头都会跳过一步。",
        ),
        instead=Text(
            "Use fw.torch.LossScaler, which grows where gradients leave room.",
            "使用 fw.torch.LossScaler，仅在梯度留有余量时增大。",
        ),
    ),
    Loss(
        paths=("loss_scale.hysteresis",),
        what=Text(
            "GradScaler backs off at the first overflow; the plan waits for {before} in a row.",
            "GradScaler 首次溢出就减小系数；计划要求连续 {before} 次。",
        ),
        instead=Text("Use fw.torch.LossScaler.", "使用 fw.torch.LossScaler。"),
    ),
)
"""For systems that scale by `torch.amp.GradScaler`: read back, it has growth `fixed`, hysteresis 1 and no limits."""

# SPDX-License-Identifier: Apache-2.0
"""What Lightning accepts and what then does not do what it says."""

from __future__ import annotations

from floatwise.exporters.lightning.given import Given
from floatwise.exporters.lightning.strategies import CLIPS_BY_PLUGIN
from floatwise.exporters.system import Finding
from floatwise.language import Text

__all__ = ["alias", "clipping_with_fused", "cpu_float16", "deepspeed_is_no_autocast"]


def alias(given: Given, value: object, full: str) -> Finding:
    """The old spelling `precision=16` or "bf16": accepted with a warning."""
    return Finding(
        "precision-alias",
        (*given.loc, "precision"),
        Text(
            f'{value!r} is an old spelling of "{full}", which keeps float32 weights; Lightning warns.',
            f'{value!r} 是 "{full}" 的旧写法（权重保持 float32），Lightning 会发出警告。',
        ),
        Text(f'Write "{full}".', f'改写为 "{full}"。'),
    )


def cpu_float16(given: Given, precision: str) -> Finding | None:
    """Float16 autocast on CPU, which becomes bfloat16."""
    if precision != "16-mixed" or given.values.get("accelerator") != "cpu":
        return None
    return Finding(
        "cpu-float16",
        (*given.loc, "precision"),
        Text(
            "On CPU Lightning trains 16-mixed as bf16-mixed and only warns: there is no float16 and no loss scale.",
            "在 CPU 上，Lightning 把 16-mixed 当作 bf16-mixed 训练，仅给出警告：没有 float16，也没有损失缩放。",
        ),
        Text(
            'Write "bf16-mixed", or hand it plugins=MixedPrecision("16-mixed", device="cpu").',
            '改写为 "bf16-mixed"，或传入 plugins=MixedPrecision("16-mixed", device="cpu")。',
        ),
    )


def deepspeed_is_no_autocast(given: Given, strategy: str, precision: str) -> list[Finding]:
    """DeepSpeed's "mixed" is not autocast: the weights are 16-bit."""
    if strategy != "deepspeed" or not precision.endswith("mixed"):
        return []
    what = Text(
        f"Under DeepSpeed {precision} casts weights and inputs to 16 bits; nothing is autocast. Norms and softmax "
        "compute in 16 bits, and DeepSpeed updates float32 master weights.",
        f"在 DeepSpeed 下，{precision} 会把权重和输入都转换为 16 位，不使用 autocast：归一化与 softmax 也以 16 位计算，"
        "由 DeepSpeed 更新 float32 主权重。",
    )
    do = Text(
        "For autocast take another strategy, or DeepSpeedStrategy(config=...) with torch_autocast.",
        "如需 autocast，请换用其他策略，或使用带 torch_autocast 的 DeepSpeedStrategy(config=...)。",
    )
    return [Finding("deepspeed-mixed", (*given.loc, "precision"), what, do)]


def clipping_with_fused(given: Given, strategy: str, precision: str) -> list[Finding]:
    """Clipping with a fused optimizer raises in both mixed precisions, though bfloat16 has nothing to unscale."""
    fused = any(call.kwargs.get("fused") is True for call in given.settings.calls)
    if (
        strategy not in CLIPS_BY_PLUGIN
        or not fused
        or not given.values.get("gradient_clip_val")
        or not precision.endswith("mixed")
    ):
        return []
    what = Text(
        'gradient_clip_val with a fused optimizer raises RuntimeError "does not allow for gradient clipping", in '
        "bf16-mixed too.",
        "gradient_clip_val 与 fused 优化器一起使用会抛出 RuntimeError（does not allow for gradient clipping），"
        "bf16-mixed 也不例外。",
    )
    do = Text("Delete fused=True.", "删除 fused=True。")
    return [Finding("clip-with-fused", (*given.loc, "gradient_clip_val"), what, do)]

# SPDX-License-Identifier: Apache-2.0
"""The sentences that say why a project is as it is."""

from __future__ import annotations

from floatwise.hardware import Device
from floatwise.language import Text
from floatwise.plan import Plan
from floatwise.scaffold.answers import Answers
from floatwise.scaffold.memory import StateMemory, state_memory

__all__ = [
    "accumulation",
    "bfloat16",
    "checkpointing",
    "clipping",
    "find_nan",
    "float16",
    "float32",
    "gentle",
    "islands",
    "master",
    "memory",
    "sharding",
    "smaller_batch",
    "speed",
]


def _say(text: Text, **values: object) -> Text:
    return Text(text.en.format(**values), text.zh.format(**values))


def bfloat16(device: Device, *, is_for_nan: bool) -> Text:
    """Why bfloat16."""
    text = Text(
        "bfloat16 for matrix products, float32 weights: {device} multiplies bfloat16 in hardware, and its range is "
        "that of float32, so no loss scale is needed.",
        "矩阵乘法用 bfloat16，权重为 float32：{device} 有 bfloat16 硬件单元，且其数值范围与 float32 相同，"
        "无需损失缩放。",
    )
    if is_for_nan:
        text = Text(
            text.en + " Overflow of float16, the usual cause of NaN, cannot happen.",
            text.zh + "NaN 最常见的原因是 float16 溢出，用 bfloat16 不会发生。",
        )
    return _say(text, device=device.name)


def float16(device: Device) -> Text:
    """Why float16."""
    return _say(
        Text(
            "float16 for matrix products, float32 weights, and a dynamic loss scale that keeps small gradients from "
            "becoming zero: {device} has float16 units and no bfloat16 units it can rely on.",
            "矩阵乘法用 float16，权重为 float32，并用动态损失缩放防止小梯度变成零：{device} 有 float16 单元，"
            "但没有可靠的 bfloat16 单元。",
        ),
        device=device.name,
    )


def float32(device: Device) -> Text:
    """Why float32."""
    return _say(
        Text(
            "float32 throughout: {device} has no reliable 16-bit matrix units, so lower precision would gain no time.",
            "全程 float32：{device} 没有可靠的 16 位矩阵单元，降低精度不会更快。",
        ),
        device=device.name,
    )


def islands(device: Device, scale: float, runs_under_floatwise: bool) -> Text:
    """What float16 without bfloat16 gets against NaN."""
    finds = _PLAN_FINDS if runs_under_floatwise else _FIND_NAN_FINDS
    return _say(
        Text(
            "The head and the loss stay in float32, where logits overflow first, and the loss scale starts at "
            f"{{scale:g}}. If NaN comes back, {finds.en}",
            f"输出层和损失保持 float32（logits 最先溢出），损失缩放从 {{scale:g}} 开始。若仍出现 NaN，{finds.zh}",
        ),
        scale=scale,
        device=device.id,
    )


_PLAN_FINDS = Text(
    "`floatwise plan train.py --target {device}` finds the modules that overflow and makes them float32 islands.",
    "`floatwise plan train.py --target {device}` 会找出溢出的模块并把它们设为 float32 岛。",
)
_FIND_NAN_FINDS = Text(
    "`--find-nan` names the module that overflows: keep it in float32, too.",
    "`--find-nan` 会指出溢出的模块：让它也保持 float32。",
)


def memory(parameters: int, needed: StateMemory, has_gib: float | None) -> Text:
    """What the state needs on each device."""
    text = Text(
        "{count} weights: with gradients and Adam's averages they take {needed} on each device",
        "{count_zh}个权重：连同梯度和 Adam 状态，每个设备上占 {needed}",
    )
    if has_gib is None:
        text = Text(text.en + "; activations come on top.", text.zh + "，激活值另计。")
    else:
        text = Text(text.en + " of {has:g} GiB; activations come on top.", text.zh + "（共 {has:g} GiB），激活值另计。")
    count = f"{parameters / 1e9:.3g} billion" if parameters >= 1e9 else f"{parameters / 1e6:.3g} million"
    count_zh = f"{parameters / 1e8:.3g} 亿" if parameters >= 1e8 else f"{parameters / 1e4:.0f} 万"
    return _say(text, count=count, count_zh=count_zh, needed=_size(needed.total), has=has_gib)


def _size(size_bytes: int) -> str:
    if size_bytes < 2**30:
        return f"{size_bytes / 2**20:.3g} MiB"
    return f"{size_bytes / 2**30:.3g} GiB"


def sharding(answers: Answers, parameters: int, has_gib: float, full: float) -> Text:
    """What dividing the state among devices gains, or how many devices it takes."""
    sharded = [name for name in ("fsdp2", "zero3") if name in answers.row.parallels(answers.backend)]
    if not sharded:
        return Text(
            "This framework's scripts do not divide the state among devices; `--framework pytorch --parallel fsdp2` "
            "does.",
            "该框架的脚本不会把状态分到多张卡上；`--framework pytorch --parallel fsdp2` 可以。",
        )
    is_deepspeed = sharded[0] == "zero3"
    devices = answers.gpus
    while state_memory(parameters, sharded[0], devices, has_deepspeed_copies=is_deepspeed).total_gib > full * has_gib:
        devices += 1
    each = state_memory(parameters, sharded[0], max(devices, 2), has_deepspeed_copies=is_deepspeed)
    if answers.parallel in sharded and devices == answers.gpus:
        return _say(
            Text(
                "{parallel} divides weights, gradients and optimizer states: {each} on each of {devices} devices.",
                "{parallel} 把权重、梯度和优化器状态分到 {devices} 张卡上，每张 {each}。",
            ),
            parallel=answers.parallel,
            each=_size(each.total),
            devices=devices,
        )
    return _say(
        Text(
            "With `--parallel {parallel} --gpus {devices}` the state takes {each} on each device.",
            "使用 `--parallel {parallel} --gpus {devices}` 时，每个设备上的状态占 {each}。",
        ),
        parallel=sharded[0],
        each=_size(each.total),
        devices=max(devices, 2),
    )


def checkpointing() -> Text:
    """Why activations are computed again."""
    return Text(
        "Activation checkpointing: only the inputs of blocks are kept, and blocks are computed again in backward. "
        "It saves most of the activations and costs about a third more time.",
        "激活检查点：只保留各模块块的输入，反向传播时重新计算。可省下大部分激活内存，时间约增加三分之一。",
    )


def smaller_batch(before: int, micro_batch: int, accumulation: int, batch: int) -> Text:
    """Why the micro-batch is smaller and the batch is not."""
    return _say(
        Text(
            "Micro-batches of {micro_batch} instead of {before}, and {accumulation} of them per optimizer step: the "
            "effective batch of {batch} per device stays, so learning rate and results do, too.",
            "微批大小从 {before} 降到 {micro_batch}，每个优化器步累积 {accumulation} 个：每设备有效批大小仍为 {batch}，"
            "学习率和结果都不变。",
        ),
        before=before,
        micro_batch=micro_batch,
        accumulation=accumulation,
        batch=batch,
    )


def accumulation(micro_batch: int, count: int, batch: int) -> Text:
    """Why there are several micro-batches."""
    return _say(
        Text(
            "{count} micro-batches of {micro_batch} per optimizer step: {batch} examples per device.",
            "每个优化器步累积 {count} 个大小为 {micro_batch} 的微批：每个设备 {batch} 个样本。",
        ),
        micro_batch=micro_batch,
        count=count,
        batch=batch,
    )


def master(recipe: str) -> Text:
    """What the plan with 16-bit weights is for."""
    how = {
        "bf16-master": Text(
            "stores the weights in bfloat16 beside the bits that make updates exact",
            "以 bfloat16 存储权重，另存使更新精确的低位",
        ),
        "fp16-master": Text(
            "stores the weights in float16 beside the rounding error of the last update (Kahan summation)",
            "以 float16 存储权重，另存上次更新的舍入误差（Kahan 求和）",
        ),
    }[recipe]
    return Text(
        f"If it still does not fit: `floatwise run --plan precision-master.toml train.py` {how.en}. Autocast's 16-bit "
        "copies of the weights, 2 bytes for each, are then not needed.",
        f"如果仍然放不下：`floatwise run --plan precision-master.toml train.py` {how.zh}，"
        "从而省去 autocast 的 16 位权重副本（每个权重 2 字节）。",
    )


def clipping(norm: float) -> Text:
    """Why gradients are clipped."""
    return _say(
        Text(
            "Gradients are clipped at a norm of {norm:g}: one bad batch does no harm.",
            "梯度按范数 {norm:g} 裁剪：个别坏批次不会破坏训练。",
        ),
        norm=norm,
    )


def gentle(learning_rate: float, warmup: int, norm: float) -> Text:
    """Which learning rate suits a training that diverges."""
    return _say(
        Text(
            "Against divergence: learning rate halved to {rate:g}, {warmup} steps of warm-up, gradients clipped at a "
            "norm of {norm:g}, and the loss is computed in float32.",
            "防止发散：学习率减半为 {rate:g}，预热 {warmup} 步，梯度按范数 {norm:g} 裁剪，损失以 float32 计算。",
        ),
        rate=learning_rate,
        warmup=warmup,
        norm=norm,
    )


def find_nan() -> Text:
    """How to find where NaN begins."""
    return Text(
        "`python train.py --find-nan` stops at the first module whose output is not finite and names it.",
        "`python train.py --find-nan` 会在第一个输出非有限值的模块处停下并给出其名称。",
    )


def speed(answers: Answers, plan: Plan) -> list[Text]:
    """What makes it faster."""
    said = [
        Text(
            "Widths and batches are multiples of 8 (float8 would want 16), so that matrix units are fed fully.",
            "宽度和批大小都是 8 的倍数（float8 需要 16 的倍数），以充分利用矩阵单元。",
        )
    ]
    if plan.float32_matmul == "tf32":
        said.append(
            Text(
                "Products that stay in float32 use the TF32 unit, which is several times faster.",
                "仍为 float32 的乘法走 TF32 单元，速度快数倍。",
            )
        )
    said.append(
        Text(
            "The model is compiled and the optimizer is fused: fewer kernels, less memory traffic.",
            "编译模型并使用融合优化器：核函数更少，访存更少。",
        )
    )
    if answers.task == "image" and answers.parallel != "fsdp2":
        said.append(
            Text(
                "Channels come last in memory, as the convolutions of matrix units want them.",
                "通道在内存中放在最后，符合矩阵单元卷积的要求。",
            )
        )
    said.append(
        Text(
            "`python check.py` measures step time and memory against float32 and says why when nothing is gained.",
            "`python check.py` 与 float32 对比步时间和内存，并在没有收益时说明原因。",
        )
    )
    return said

# SPDX-License-Identifier: Apache-2.0
"""Why the planner decided as it did: every reason is a code, its data, and one sentence in two languages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatwise.language import Text
from floatwise.planner.finding_texts import FINDINGS

__all__ = ["REASONS", "Reason"]


@dataclass(frozen=True)
class Reason:
    """A reason with the values that fill its sentence; `str(reason)` is the sentence in the current language."""

    code: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        # A Text among the data (a hardware row's words) is shown in the current language, too.
        return REASONS[self.code].format(**self.data)


_HARDWARE = {
    "has_matrix_unit": Text(
        "{device} multiplies {format} matrices in hardware{rate}.",
        "{device} 有 {format} 矩阵单元{rate}。",
    ),
    "no_matrix_unit": Text(
        "{device} has no {format} matrix unit: {format} products there are emulated or as slow as float32.",
        "{device} 没有 {format} 矩阵单元：{format} 乘法只能模拟执行，或与 float32 一样慢。",
    ),
    "no_16_bit_unit": Text(
        "{device} has no 16-bit matrix unit, so mixed precision would cost time here: stay in float32.",
        "{device} 没有任何 16 位矩阵单元，混合精度在这里只会更慢：请继续使用 float32。",
    ),
    "unreliable_format": Text(
        "{format} is known to fail on {device}: {why}",
        "{format} 在 {device} 上已知会出错：{why}",
    ),
    "master_split": Text(
        "Weights and gradients in bfloat16 and exact float32 updates: 14 bytes a parameter with Adam, where "
        "bf16-mixed needs 16 and casts; for when memory decides (`floatwise run --recipe bf16-master`).",
        "权重和梯度用 bfloat16 存储，更新与 float32 完全一致：使用 Adam 时每个参数 14 字节，而 bf16-mixed 为 16 字节"
        "外加转换副本；适合显存吃紧的情形（`floatwise run --recipe bf16-master`）。",
    ),
    "master_copy": Text(
        "Weights and gradients in float16 beside a float32 copy: as large as fp16-mixed without its casts.",
        "权重和梯度用 float16 存储，另存一份 float32 副本：与 fp16-mixed 同样大小，但省去转换副本。",
    ),
    "tf32_only_products": Text(
        "TensorFloat-32 speeds up float32 products without any cast; it saves no memory.",
        "TensorFloat-32 无需转换即可加速 float32 乘法，但不节省内存。",
    ),
    "better_accepted": Text(
        "{better} is accepted, too, and preferred.",
        "{better} 在这里也可用，并优先采用。",
    ),
    "baseline": Text("The baseline: always right, never faster.", "基线：总是正确，但不会更快。"),
}

_NUMERICS = {
    "bf16_range": Text(
        "bfloat16 has float32's range: nothing recorded overflows or vanishes in it, so it needs no loss scale.",
        "bfloat16 的数值范围与 float32 相同：记录到的数值既不上溢也不会变为零，因此不需要损失缩放。",
    ),
    "bf16_flushes": Text(
        "bfloat16 has float32's range: nothing overflows; {underflow} of the gradients are too small even for float32.",
        "bfloat16 的数值范围与 float32 相同：不会上溢；{underflow} 的梯度即使在 float32 中也过小。",
    ),
    "forward_fits": Text(
        "The largest value that enters or leaves a {format} product is {amax} ({site}), "
        "{bits} bits below the limit {limit}.",
        "进出 {format} 乘法的最大值为 {amax}（{site}），距上限 {limit} 还有 {bits} 位余量。",
    ),
    "forward_overflow": Text(
        "The {role} of {site} reaches {amax}, past float16's largest value {limit}.",
        "{site} 的{role_zh}达到 {amax}，超过 float16 的最大值 {limit}。",
    ),
    "forward_near_limit": Text(
        "The {role} of {site} reaches {amax}, less than {margin} bits below float16's largest value {limit}.",
        "{site} 的{role_zh}达到 {amax}，距 float16 的最大值 {limit} 不足 {margin} 位。",
    ),
    "feeds_overflow": Text(
        "{site}, which is computed from it, reaches {amax}: float16 ends at {limit}.",
        "由它计算出的 {site} 达到 {amax}，而 float16 的上限为 {limit}。",
    ),
    "feeds_constant": Text(
        "{site}, which is computed from it, uses the number {constant}, which float16 cannot hold.",
        "由它计算的 {site} 用到数值 {constant}，float16 无法表示。",
    ),
    "feeds_island": Text(
        "The code between it and {site} would overflow in float16, so both ends stay in float32.",
        "它与 {site} 之间的计算在 float16 中会上溢，因此两端都保留 float32。",
    ),
    "gradient_limits_window": Text(
        "Gradients of {site} reach {amax}: they leave too narrow a loss-scale window for the other modules.",
        "{site} 的梯度达到 {amax}，使其余模块可用的损失缩放窗口过窄。",
    ),
    "islands_too_large": Text(
        "{share} of the matrix FLOPs would have to stay in float32.",
        "有 {share} 的矩阵运算量必须留在 float32。",
    ),
    "window": Text(
        "Loss scales from 2^{lo} to 2^{hi} lose no gradient (largest: {largest}); it starts at 2^{start}.",
        "损失缩放在 2^{lo} 到 2^{hi} 之间不会丢失梯度（最大者：{largest}）；初始值取 2^{start}。",
    ),
    "window_narrow": Text(
        "No loss scale suits all gradients: past 2^{hi} those of {largest} overflow, and three bits below that "
        "{site} still loses {share} of its own.",
        "没有适合全部梯度的损失缩放：超过 2^{hi} 时 {largest} 的梯度上溢，"
        "而再低三位时 {site} 仍会丢失 {share} 的梯度。",
    ),
    "stalls": Text(
        "Weights stay in float32: stored in {format}, {share} of the updates would be lost "
        "(worst: {parameter}, {worst}).",
        "权重保留为 float32：若以 {format} 存储，{share} 的更新会丢失（最严重：{parameter}，{worst}）。",
    ),
    "baseline_not_finite": Text(
        "The loss is {loss} at step {step} in plain float32: repair that first, no precision will.",
        "在纯 float32 下，第 {step} 步的损失就已是 {loss}：请先修复它，换任何精度都无济于事。",
    ),
    "float64_model": Text(
        "The script computes in float64, which autocast leaves alone: convert the model to float32 first.",
        "脚本使用 float64 计算，autocast 不会处理它：请先把模型改为 float32。",
    ),
}

_REHEARSED = {
    "rehearsal_passes": Text(
        "Rehearsed for {steps} steps with 16-bit products as matrix units make them: loss {planned}, float32's "
        "{float32}; {skipped} steps skipped.",
        "按矩阵单元的 16 位乘法预演 {steps} 步：损失 {planned}，float32 为 {float32}；跳过 {skipped} 步。",
    ),
    "rehearsal_passes_with_islands": Text(
        "Rehearsed for {steps} steps, it passes with the modules below in float32: loss {planned}, float32's "
        "{float32}; {skipped} steps skipped.",
        "预演 {steps} 步，把下列模块保留为 float32 后通过：损失 {planned}，float32 为 {float32}；跳过 {skipped} 步。",
    ),
    "rehearsal_island": Text(
        "The rehearsal needs it in float32 ({share} of the matrix FLOPs): {evidence}",
        "预演表明它必须保留 float32（占矩阵运算量的 {share}）：{evidence}",
    ),
    "rehearsal_refused": Text("The rehearsal of {recipe} fails: {evidence}", "{recipe} 的预演未通过：{evidence}"),
    "recurrent_not_predicted": Text(
        "Speed and memory are not predicted for models with recurrent layers ({modules}): what the rehearsal computes "
        "them with is no measure of a GPU's own kernels.",
        "含循环层（{modules}）的模型不做速度与内存预测：预演计算循环层的方式不能代表 GPU 自身的内核。",
    ),
    "not_rehearsed": Text(
        "{recipe} was not rehearsed: `floatwise plan {script} --target {target}` does that.",
        "{recipe} 尚未预演：运行 `floatwise plan {script} --target {target}` 即可预演。",
    ),
    "rehearsal_failed": Text(
        "Rehearsed here, the script fails under {recipe}: {failure}",
        "在本机预演时，脚本在 {recipe} 下失败：{failure}",
    ),
    "rehearsal_impossible": Text(
        "The script could not be rehearsed, so it is judged by its recorded values alone: {failure}",
        "脚本无法预演，因此只依据记录的数值判断：{failure}",
    ),
    "rehearsal_advice": Text(
        "Instead of a float32 island under {recipe}: {advice}",
        "也可以不在 {recipe} 下保留 float32 模块：{advice}",
    ),
    "predicted_not_faster": Text(
        "Predicted for {device}: {recipe} makes {ratio}× the steps per second of float32, at best {high}; not worth it "
        "at this size.",
        "对 {device} 的预测：{recipe} 的每秒步数为 float32 的 {ratio} 倍，至多 {high} 倍；在这一规模下不值得使用。",
    ),
    "launch_bound": Text(
        "Predicted for {device}: {recipe} makes {ratio}× the steps per second of float32 (from {low} to {high}). At "
        "this size, starting the operators takes longer than computing them: larger batches or torch.compile bring "
        "the gain. Measure it there.",
        "对 {device} 的预测：{recipe} 的每秒步数为 float32 的 {ratio} 倍（{low} 到 {high}）。在这一规模下，"
        "启动算子比计算更耗时：增大批次或使用 torch.compile 才能见效。请在该设备上实测。",
    ),
    "launch_bound_tf32": Text(
        "Predicted for {device}: {recipe} makes {ratio}× the steps per second of float32 (from {low} to {high}), tf32 "
        "{tf32}×. At this size, starting the operators takes longer than computing them, and autocast starts more of "
        "them: larger batches or torch.compile bring the gain. Measure it there.",
        "对 {device} 的预测：{recipe} 的每秒步数为 float32 的 {ratio} 倍（{low} 到 {high}），tf32 为 {tf32} 倍。"
        "在这一规模下，启动算子比计算更耗时，而 autocast 还会增加算子：增大批次或使用 torch.compile 才能见效。"
        "请在该设备上实测。",
    ),
    "fits_with_masters": Text(
        "Predicted peak memory: {recipe} needs {peak}, which {device} ({memory}) does not have; with 16-bit weights "
        "and exact float32 updates it is {smaller}.",
        "预测的峰值内存：{recipe} 需要 {peak}，超过 {device}（{memory}）；以 16 位存储权重、float32 精确更新则为 "
        "{smaller}。",
    ),
    "predicted_out_of_memory": Text(
        "Predicted peak of tensor memory: {peak}, more than {device} has ({memory}). Activations are {activations}: "
        "activation checkpointing or smaller batches with accumulation reduce them. Weights and optimizer states are "
        "{states}: sharding (FSDP2) divides them.",
        "预测的张量内存峰值为 {peak}，超过 {device} 的 {memory}。其中激活 {activations}：可用激活检查点，"
        "或减小批次并累积梯度；权重与优化器状态 {states}：可用分片（FSDP2）分摊。",
    ),
    "float8_elsewhere": Text(
        "{share} of the products' FLOPs are in linear layers that float8 takes. Floatwise rehearses {recipe} and does "
        "not train with it: {how}",
        "乘法运算量中有 {share} 位于可用 float8 的线性层。Floatwise 只预演 {recipe}，不直接用它训练：{how}",
    ),
    "no_float8_layers": Text(
        "No linear layer has inputs and outputs that are multiples of 16: float8 products need that.",
        "没有任何线性层的输入和输出维度是 16 的倍数：float8 乘法要求如此。",
    ),
}

_WORTH = {
    "script_failed": Text(
        "Tried here, the script fails under {recipe}: {failure}",
        "在本机试运行时，脚本在 {recipe} 下失败：{failure}",
    ),
    "no_products": Text(
        "No matrix product or convolution was seen in the forward pass: a matrix unit has nothing to speed up.",
        "前向过程中没有出现矩阵乘法或卷积：矩阵单元无从加速。",
    ),
    "small_matrix_share": Text(
        "Only {share} of a step's time goes into matrix products (measured on the recording machine): "
        "at best {bound}× faster.",
        "一步中只有 {share} 的时间花在矩阵乘法上（在记录所用机器上测得）：最多快 {bound} 倍。",
    ),
    "matrix_share": Text(
        "{share} of a float32 step's time goes into matrix products (measured on the recording machine).",
        "float32 一步中有 {share} 的时间花在矩阵乘法上（在记录所用机器上测得）。",
    ),
    "tiny_model": Text(
        "A step is only {flops} FLOPs: starting the operators takes longer than computing them.",
        "一步只有 {flops} 次浮点运算：启动算子的时间比计算本身还长。",
    ),
    "measured_faster": Text(
        "Measured here, step by step in turn with float32: {speed}× the steps per second{memory}.",
        "在本机与 float32 逐步交替实测：每秒步数为 {speed} 倍{memory}。",
    ),
    "measured_not_faster": Text(
        "Measured here, step by step in turn with float32: {speed}× the steps per second{memory}; not worth it.",
        "在本机与 float32 逐步交替实测：每秒步数为 {speed} 倍{memory}；不值得使用。",
    ),
    "xla_on_cpu": Text(
        "{recipe} was not measured here, and XLA computes most {format} products of a training step on CPUs in "
        "float32, after conversions that cost time: only a measurement could show a gain.",
        "{recipe} 未在此实测；在 CPU 上，XLA 会先转换再用 float32 计算训练步中的大部分 {format} 乘法，转换本身也耗时："
        "只有实测才能证明收益。",
    ),
    "not_predicted_here": Text(
        "Speed and memory on {device} are not predicted for {framework} scripts; small models gain nothing on a GPU. "
        "Measure there: `floatwise plan {script}` on that machine.",
        "不对 {framework} 脚本预测在 {device} 上的速度与内存；小模型在 GPU 上没有收益。"
        "请在该机器上运行 `floatwise plan {script}` 实测。",
    ),
    "measured_without_products": Text(
        "Measured here, step by step in turn with float32: {speed}× the steps per second{memory}. But what is "
        "compiled for this backend ({backend}) rounds to {format} and multiplies in float32: nothing is gained but by "
        "chance.",
        "在本机与 float32 逐步交替实测：每秒步数为 {speed} 倍{memory}。但为此后端（{backend}）编译的程序"
        "只是舍入到 {format}，乘法仍用 float32 计算：除了偶然，没有收益可言。",
    ),
    "measured_unclear": Text(
        "Measured here, step by step in turn with float32: {speed}× the steps per second{memory}, but the middle "
        "half of the pairs spans {slowest} to {fastest}×: no gain is shown.",
        "在本机与 float32 逐步交替实测：每秒步数为 {speed} 倍{memory}，但各对步骤的中间一半"
        "在 {slowest} 到 {fastest} 倍之间：不足以证明有收益。",
    ),
    "loss_parity": Text(
        "Its loss after {steps} steps is {planned}, float32's {float32}: within float32's own spread over seeds.",
        "{steps} 步后损失为 {planned}，float32 为 {float32}：在 float32 不同随机种子的波动范围之内。",
    ),
    "loss_outside": Text(
        "Its loss after {steps} steps is {planned}, outside float32's own range {low} to {high} over seeds.",
        "{steps} 步后损失为 {planned}，超出 float32 不同随机种子的范围 {low} 到 {high}。",
    ),
    "nothing_run_there": Text(
        "Judged from float32 values recorded elsewhere and the data sheet of {device}; nothing was run on it.",
        "依据在别处记录的 float32 数值和 {device} 的规格判断；没有在该设备上运行任何东西。",
    ),
}

REASONS: dict[str, Text] = {**_HARDWARE, **_NUMERICS, **_REHEARSED, **_WORTH, **FINDINGS}

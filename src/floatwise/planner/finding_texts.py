# SPDX-License-Identifier: Apache-2.0
"""The sentences of findings: what else the reader should know about a script, its values and its measurement."""

from __future__ import annotations

from floatwise.language import Text

__all__ = ["FINDINGS"]

FINDINGS: dict[str, Text] = {
    "measurement_noisy": Text(
        "The machine was busy: the middle half of the pairs of steps spans {low} to {high} times. "
        "Measure again when it is quiet, or with more --steps.",
        "机器当时很忙：各对步骤的比值，中间一半在 {low} 到 {high} 倍之间。请在空闲时重新测量，或增大 --steps。",
    ),
    "hidden_nonfinite": Text(
        "The loss is finite in float32, but {count} parameters had gradients that are not: {paths}. No plan cures "
        "that; look at what comes before them in the backward pass (a square root or a norm of zeros, a division).",
        "float32 下损失是有限值，但有 {count} 个参数的梯度不是：{paths}。任何计划都无法解决；"
        "请检查反向传播中在它们之前的运算（对零求平方根或范数、除法）。",
    ),
    "hidden_zero": Text(
        "The gradients of {count} parameters are zero in every step: {paths}. Nothing they do reaches the loss, or "
        "they vanish on the way (a saturated softmax, a dead ReLU, a stopped gradient).",
        "{count} 个参数的梯度在每一步都为零：{paths}。它们不影响损失，或梯度在途中消失"
        "（softmax 饱和、ReLU 失活、梯度被截断）。",
    ),
    "weights_still": Text(
        "{count} parameters have gradients, yet no update changed them: {paths}. Are they given to the optimizer, and "
        "is the learning rate more than zero? A gradient still divided by a loss scale looks like this.",
        "{count} 个参数有梯度，但没有任何更新改变它们：{paths}。它们是否交给了优化器？学习率是否大于零？"
        "被损失缩放多除了一次的梯度也会表现为这样。",
    ),
    "no_product_in_format": Text(
        "Under {recipe} no product of the training step is in {format}: nothing can become faster.",
        "在 {recipe} 下，训练步中没有任何乘法使用 {format}：不可能变快。",
    ),
    "products_widened": Text(
        "Under {recipe} {asked} of the multiplications are asked for in {format}, but {ran} run in it on this backend "
        "({backend}): the compiler computes the others wider, after conversions that cost time.",
        "在 {recipe} 下，程序要求 {asked} 的乘法用 {format} 计算，但在此后端（{backend}）上实际只有 {ran}："
        "其余由编译器先转换再以更宽的格式计算，转换本身也耗时。",
    ),
    "found_autocast": Text(
        "The script already has an autocast region ({detail}); the plan replaces its dtype with its own: {plan}.",
        "脚本已有 autocast 区域（{detail}）；计划会以自己的精度取代它：{plan}。",
    ),
    "not_applied": Text(
        "{recipe} is not applied to a {framework} script from outside: {instead}.",
        "{recipe} 不会从外部应用到 {framework} 脚本：{instead}。",
    ),
    "found_loss_scale": Text(
        "The script scales its loss itself ({detail}); its own scale stays under the plan: {plan}.",
        "脚本自己缩放损失（{detail}）；在计划下其缩放保持不变：{plan}。",
    ),
    "found_stored_in_16_bits": Text(
        "The script keeps its weights in {detail}, where small updates are lost; the plan leaves them so. Keep them in "
        "float32, or update them with floatwise.jax.split_master.",
        "脚本以 {detail} 保存权重，微小的更新会丢失；计划不改动它们。"
        "请改用 float32 保存，或用 floatwise.jax.split_master 更新。",
    ),
    "found_low_precision_products": Text(
        "The script already multiplies in {detail}; the plan leaves these products as they are: {plan}.",
        "脚本已用 {detail} 做矩阵乘法；计划不改动这些乘法：{plan}。",
    ),
    "found_dtype_policy": Text(
        "The script sets a Keras dtype policy ({detail}); the plan's policies take its place: {plan}.",
        "脚本设置了 Keras 的 dtype 策略（{detail}）；由计划的策略取代：{plan}。",
    ),
    "found_grad_scaler": Text(
        "The script already scales its loss ({detail}); the plan {scaling}, and the script's scaler is switched off.",
        "脚本已使用损失缩放（{detail}）；计划{scaling_zh}，脚本自己的 scaler 会被关闭。",
    ),
    "found_low_precision_weights": Text(
        "The script keeps its weights in {detail}; the plan keeps float32 weights and casts them for each product.",
        "脚本以 {detail} 保存权重；计划保留 float32 权重，并在每次乘法时转换。",
    ),
    "found_default_dtype": Text(
        "The script makes {detail} the default dtype; the plan keeps float32 weights.",
        "脚本把默认 dtype 设为 {detail}；计划保留 float32 权重。",
    ),
    "found_compile": Text(
        "The script compiles its model ({detail}); values were recorded uncompiled, `floatwise run` runs it compiled.",
        "脚本编译了模型（{detail}）；记录数值时未编译，`floatwise run` 会按编译方式运行。",
    ),
    "found_trainer_setting": Text(
        "The trainer is asked for mixed precision: {detail}; the plan takes its place: {plan}.",
        "训练器设置了混合精度：{detail}；由计划取代：{plan}。",
    ),
    "found_deepspeed": Text(
        "A DeepSpeed configuration asks for {detail}; the plan takes its place: {plan}.",
        "DeepSpeed 配置要求 {detail}；由计划取代：{plan}。",
    ),
    "found_checkpoint": Text(
        "While planning, what the script saves to {detail} went to a temporary folder: your file is untouched.",
        "规划期间，脚本保存到 {detail} 的内容写入了临时目录：你的文件没有被改动。",
    ),
    "found_launcher": Text(
        "The script expects {detail}'s environment: values come from one process; train several with "
        "`torchrun -m floatwise run`.",
        "脚本需要 {detail} 的环境变量：数值来自单个进程；多进程训练请使用 `torchrun -m floatwise run`。",
    ),
    "binary_cross_entropy": Text(
        "{site} is a binary cross entropy on probabilities, which CUDA's autocast refuses; `floatwise run` computes it "
        "in float32. BCEWithLogitsLoss is safe everywhere.",
        "{site} 是对概率的二元交叉熵，CUDA 的 autocast 会拒绝执行；`floatwise run` 以 float32 计算它。"
        "使用 BCEWithLogitsLoss 则处处安全。",
    ),
    "unaligned": Text(
        "{count} of {total} products have a side that is no multiple of {multiple} ({example}): {format} matrix units "
        "run them at part of their rate; pad these sizes.",
        "{total} 个乘法中有 {count} 个的某一维不是 {multiple} 的倍数（{example}）：{format} "
        "矩阵单元只能以部分速率运行；"
        "建议补齐这些尺寸。",
    ),
    "update_by_hand": Text(
        "Parameters are updated by hand, without a torch optimizer: steps were recognised by their changed values.",
        "参数由脚本手动更新，未使用 torch 优化器：按参数值的变化识别训练步。",
    ),
    "few_steps": Text(
        "The script ended after {steps} of {wanted} steps: fewer values were seen than the decision likes.",
        "脚本在 {wanted} 步中只运行了 {steps} 步：观察到的数值偏少。",
    ),
    "kept_in_float32": Text(
        "Autocast itself keeps in float32: {modules}.",
        "autocast 自身会保留为 float32 的有：{modules}。",
    ),
    "seeds_have_no_effect": Text(
        "Other seeds give the same losses: the spread is float32's rounding alone, taken as {share} of the loss.",
        "更换随机种子后损失不变：波动范围只能按损失的 {share} 估计。",
    ),
}

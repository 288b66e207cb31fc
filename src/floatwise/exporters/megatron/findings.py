# SPDX-License-Identifier: Apache-2.0
"""What Megatron-LM accepts and does not do as people expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from floatwise.exporters.system import Finding
from floatwise.language import Text

__all__ = ["findings_of"]

_Values = Mapping[str, Any]

_ROWS: tuple[tuple[Callable[[_Values], Any], Finding], ...] = (
    (
        lambda v: v.get("fp8_format") and not (v.get("bf16") or v.get("fp16")),
        Finding(
            "float8-over-float32",
            ("fp8_format",),
            Text(
                "Without --bf16 all that is not multiplied in float8 is float32: slower than bfloat16 alone "
                "(NVIDIA/Megatron-LM#883).",
                "没有 --bf16 时，不用 float8 相乘的部分都是 float32：比单用 bfloat16 还慢（NVIDIA/Megatron-LM#883）。",
            ),
            Text("Add --bf16.", "加上 --bf16。"),
        ),
    ),
    (
        lambda v: v.get("fp8_format") and v.get("fp8_recipe", "delayed") == "delayed",
        Finding(
            "delayed-scaling",
            ("fp8_recipe",),
            Text(
                "Scale factors come from an earlier step, by default from the last one alone: a tensor that grows "
                "suddenly saturates. The plan given here scales by the tensor itself.",
                "缩放因子来自之前的步，默认仅取上一步：张量突然变大时会饱和。这里给出的计划按张量自身缩放。",
            ),
            Text("Write --fp8-recipe tensorwise.", "写 --fp8-recipe tensorwise。"),
        ),
    ),
    (
        lambda v: v.get("accumulate_allreduce_grads_in_fp32") and v.get("grad_reduce_in_bf16") and v.get("bf16"),
        Finding(
            "sums-in-bfloat16",
            ("grad_reduce_in_bf16",),
            Text(
                "It turns --accumulate-allreduce-grads-in-fp32 off: gradients are summed in bfloat16.",
                "它会关闭 --accumulate-allreduce-grads-in-fp32：梯度以 bfloat16 累加和归约。",
            ),
            Text("Delete one of the two.", "删除其中一个。"),
        ),
    ),
    (
        lambda v: v.get("grad_reduce_in_bf16") and not v.get("bf16"),
        Finding(
            "flag-without-effect",
            ("grad_reduce_in_bf16",),
            Text("It is read with --bf16 only.", "只有与 --bf16 同用才会读取它。"),
            Text("Delete it, or write --bf16.", "删除它，或写 --bf16。"),
        ),
    ),
    (
        lambda v: v.get("fp16") and not v.get("loss_scale") and "initial_loss_scale" not in v,
        Finding(
            "high-first-scale",
            ("fp16",),
            Text(
                "The scale begins at 2^32, and each overflow of the first steps skips one, 16 of them or more.",
                "缩放系数从 2^32 开始，最初的每次溢出都会跳过一步，共 16 步或更多。",
            ),
            Text("Write --initial-loss-scale 65536.", "写 --initial-loss-scale 65536。"),
        ),
    ),
    (
        lambda v: v.get("fp16") and v.get("loss_scale_window", 1000) != int(v.get("loss_scale_window", 1000)),
        Finding(
            "scale-never-grows",
            ("loss_scale_window",),
            Text(
                "Steps are counted in whole numbers and compared with ==: a fraction is never reached, so the scale "
                "never grows.",
                "步数为整数并用 == 比较：永远不会等于小数，因此缩放系数不会增大。",
            ),
            Text("Write a whole number.", "写整数。"),
        ),
    ),
    (
        lambda v: v.get("main_params_dtype") == "fp16",
        Finding(
            "float16-master",
            ("main_params_dtype",),
            Text(
                "Master weights are float16 with a scale factor: 11 bits, where the plan given here has float32's 24.",
                "主权重为带缩放因子的 float16：11 位有效位，而这里给出的计划为 float32 的 24 位。",
            ),
            Text("Write --main-params-dtype fp32.", "写 --main-params-dtype fp32。"),
        ),
    ),
    (
        lambda v: v.get("fp8_format") and v.get("first_last_layers_bf16"),
        Finding(
            "outer-layers",
            ("first_last_layers_bf16",),
            Text(
                "The outer blocks stay in bfloat16; the plan given here does not name them.",
                "首尾的块保持 bfloat16；这里给出的计划没有列出它们。",
            ),
            Text("Add these modules to [[modules]].", "把这些模块写入 [[modules]]。"),
        ),
    ),
    (
        lambda v: (
            v.get("fp8_format")
            and v.get("fp8_param_gather")
            and v.get("reuse_grad_buf_for_mxfp8_param_ag")
            and not (v.get("overlap_param_gather") and v.get("overlap_grad_reduce"))
        ),
        Finding(
            "shared-buffer",
            ("reuse_grad_buf_for_mxfp8_param_ag",),
            Text(
                "Without the overlap flags this gave NaN in versions before PR 4769 (NVIDIA/Megatron-LM#2272).",
                "没有重叠标志时，在 PR 4769 之前的版本中会得到 NaN（NVIDIA/Megatron-LM#2272）。",
            ),
            Text(
                "Add --overlap-param-gather --overlap-grad-reduce.",
                "加上 --overlap-param-gather --overlap-grad-reduce。",
            ),
        ),
    ),
)


def findings_of(values: _Values) -> list[Finding]:
    """Returns what is accepted and dangerous among the flags with rows."""
    return [finding for applies, finding in _ROWS if applies(values)]

# SPDX-License-Identifier: Apache-2.0
"""What TransformerEngine's recipes cannot hold of a plan, and on which devices they run."""

from __future__ import annotations

from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark
from floatwise.exporters.transformer_engine.knobs import BLOCK_SINCE, CURRENT_SINCE, MX_SINCE
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]

_SUPPORT = "transformer_engine/pytorch/quantization.py, 2.20.2"

REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.compute_dtype not in FLOAT8_FORMATS,
        what=Text("A recipe of TransformerEngine is for float8.", "TransformerEngine 的配方只用于 float8。"),
        instead=Text(
            "Export to torch-amp: its modules follow torch.autocast.", "请导出到 torch-amp：其模块遵循 torch.autocast。"
        ),
        source=_SUPPORT,
    ),
    Refusal(
        when=lambda plan, request: plan.compute_dtype == "float8_e4m3fnuz",
        what=Text("It runs on NVIDIA devices, which have no e4m3fnuz.", "它运行在 NVIDIA 设备上，没有 e4m3fnuz。"),
        instead=Text("Write float8_e4m3fn, or export to torchao.", "请写 float8_e4m3fn，或导出到 torchao。"),
        source=_SUPPORT,
    ),
    Refusal(
        when=lambda plan, request: plan.scaling == "mx",
        what=Text("This version has no MXFP8BlockScaling.", "该版本没有 MXFP8BlockScaling。"),
        instead=Text(
            f"Use TransformerEngine {MX_SINCE} or newer.", f"请使用 TransformerEngine {MX_SINCE} 或更新版本。"
        ),
        source="transformer_engine/common/recipe, tags v1.13 and v2.0",
        until=MX_SINCE,
    ),
)

LOSSES = (
    Loss(
        paths=("scaling", "recipe"),
        when=lambda request: request.version.within(BLOCK_SINCE, ""),
        what=Text(
            "Gradients of weights are products in float8 too: no recipe keeps only these in high precision.",
            "权重梯度同样以 float8 相乘：没有只让它保持高精度的配方。",
        ),
        instead=Text(
            'backward_override="high_precision" (2.15 or newer) keeps all of backward; torchao has this recipe.',
            'backward_override="high_precision"（2.15 或更新版本）使整个反向保持高精度；torchao 有该配方。',
        ),
    ),
    Loss(
        paths=("scaling", "recipe"),
        what=Text(
            "This version has one scale factor per tensor only: an outlier coarsens the whole tensor.",
            "该版本每个张量只有一个缩放因子：离群值会降低整个张量的精度。",
        ),
        instead=Text(
            f"Use TransformerEngine {BLOCK_SINCE} or newer, or torchao.",
            f"请使用 TransformerEngine {BLOCK_SINCE} 或更新版本，或 torchao。",
        ),
    ),
    Loss(
        paths=("modules*",),
        what=Text(
            "A recipe serves all of TransformerEngine's modules under it: modules of the plan's own formats are lost.",
            "一个配方作用于其下所有 TransformerEngine 模块：计划中单独指定格式的模块会丢失。",
        ),
        instead=Text(
            "Make these of torch.nn, or call them under te.fp8_autocast(enabled=False).",
            "这些模块使用 torch.nn，或在 te.fp8_autocast(enabled=False) 内调用。",
        ),
    ),
    Loss(
        paths=("policy.output_dtype",),
        what=Text(
            "Outputs leave in the autocast format, bfloat16; losses of torch.nn take them in float32.",
            "输出为 autocast 的格式 bfloat16；torch.nn 的损失会以 float32 计算。",
        ),
        instead=Text("Call .float() on the outputs.", "对输出调用 .float()。"),
    ),
    Loss(
        paths=("policy.param_dtype", "weights.master"),
        what=Text(
            "A recipe does not store weights: they stay in float32, which need no master weights.",
            "配方不决定权重的存储：权重保持 float32，无需主权重。",
        ),
        instead=Text(
            "transformer_engine.pytorch.optimizers.FusedAdam(master_weights=True) keeps float32 beside 16-bit weights.",
            "transformer_engine.pytorch.optimizers.FusedAdam(master_weights=True) 可在 16 位权重旁保留 float32。",
        ),
    ),
    Loss(
        paths=("reductions*",),
        what=Text(
            "Gradients have the weights' format, float32, and are summed in it; buffers stay as they are.",
            "梯度与权重同为 float32，并以此累加和归约；缓冲区不变。",
        ),
        instead=Text("Set the formats of sums where the model is sharded.", "请在模型分片处设置归约格式。"),
    ),
    *RECORD_LOSSES,
)

REMARKS = (
    Remark(
        when=lambda plan, request: True,
        what=Text(
            "float8 needs compute capability 8.9 (there with CUDA 12.1) or higher. Sizes: the product of the leading "
            "dimensions a multiple of 8, the last of 16.",
            "float8 需要计算能力 8.9（此时需 CUDA 12.1）或更高。尺寸：前面各维之积为 8 的倍数，最后一维为 16 的倍数。",
        ),
        source=f"{_SUPPORT}; transformer_engine/pytorch/utils.py, 2.20.0.dev0",
    ),
    Remark(
        when=lambda plan, request: plan.scaling == "mx",
        what=Text(
            "MXFP8 runs on compute capability 10.x only; 12.0 is refused in this version.",
            "MXFP8 只能在计算能力 10.x 上运行；该版本在 12.0 上会报错。",
        ),
        source=_SUPPORT,
    ),
    Remark(
        when=lambda plan, request: plan.scaling in ("rowwise", "rowwise_with_gw_hp"),
        what=Text(
            "Float8BlockScaling stands for one factor per row: one per 1 by 128 of inputs and gradients and per 128 by "
            "128 of weights, powers of two. It needs compute capability 9.0 and CUDA 12.9.",
            "以 Float8BlockScaling 代替每行一个因子：输入和梯度每 1×128、权重每 128×128 一个，取 2 的幂。"
            "需要计算能力 9.0 和 CUDA 12.9。",
        ),
        source=_SUPPORT,
        since=BLOCK_SINCE,
    ),
    Remark(
        when=lambda plan, request: plan.scaling == "tensorwise",
        what=Text(
            "DelayedScaling() would take factors from earlier steps: one pass over memory less, and saturation in the "
            "step in which a tensor grows.",
            "DelayedScaling() 会采用之前步的缩放因子：少读一遍内存，但张量变大的那一步会饱和。",
        ),
        source="transformer_engine/common/recipe/__init__.py, 2.20.2",
        since=CURRENT_SINCE,
    ),
    Remark(
        when=lambda plan, request: plan.scaling != "mx",
        what=Text(
            "This version has DelayedScaling only: factors come from earlier steps, so that a tensor that grows "
            "suddenly saturates.",
            "该版本只有 DelayedScaling：缩放因子来自之前的步，张量突然变大时会饱和。",
        ),
        source="transformer_engine/common/recipe, tags v2.1 and v2.2",
        until=CURRENT_SINCE,
    ),
)

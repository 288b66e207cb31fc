# SPDX-License-Identifier: Apache-2.0
"""What torchao cannot hold of a plan, and what to know about it."""

from __future__ import annotations

from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]

REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.compute_dtype not in FLOAT8_FORMATS,
        what=Text("torchao's float8 training has no other format.", "torchao 的 float8 训练没有其他格式。"),
        instead=Text("Export to torch-amp.", "请导出到 torch-amp。"),
        source="torchao/float8, 0.18.0",
    ),
    Refusal(
        when=lambda plan, request: plan.scaling == "mx",
        what=Text(
            "This version trains no linear layer in MX through MXFP8TrainingOpConfig.",
            "该版本不能通过 MXFP8TrainingOpConfig 用 MX 格式训练线性层。",
        ),
        instead=Text("Use torchao 0.17 or newer.", "请使用 torchao 0.17 或更新版本。"),
        source="torchao/prototype/moe_training/config.py: absent in 0.16.0, there in 0.17.0",
        until="0.17",
    ),
)

LOSSES = (
    Loss(
        paths=("modules*.policy.compute_dtype",),
        before="float32",
        what=Text(
            "Modules left out of float8 compute in the autocast format, bfloat16, not in float32.",
            "不使用 float8 的模块以 autocast 的格式 bfloat16 计算，而不是 float32。",
        ),
        instead=Text(
            "Wrap their forward in torch.autocast(device, enabled=False) and cast their inputs to float32.",
            "把它们的 forward 放进 torch.autocast(device, enabled=False)，并把输入转换为 float32。",
        ),
    ),
    Loss(
        paths=("modules*.policy.output_dtype", "policy.output_dtype"),
        what=Text(
            "Outputs leave as the last layer under autocast computed them; losses of torch.nn take them in float32.",
            "输出保持 autocast 下最后一层的计算格式；torch.nn 的损失会以 float32 计算。",
        ),
        instead=Text("Call .float() on the outputs.", "对输出调用 .float()。"),
    ),
    Loss(
        paths=("modules*.policy.param_dtype", "policy.param_dtype", "weights.master"),
        what=Text(
            "The conversion leaves weights as the model has them, float32, which need no master weights.",
            "转换不改变模型中权重的格式，即 float32，无需主权重。",
        ),
        instead=Text(
            "For weights in 16 bits use fw.torch.MasterWeights with it.",
            "如需 16 位权重，请配合 fw.torch.MasterWeights。",
        ),
    ),
    Loss(
        paths=("policy.compute_dtype",),
        what=Text(
            "torchao chooses the float8 format by the device: e4m3fnuz on AMD's MI300, e4m3fn elsewhere.",
            "torchao 按设备选择 float8 格式：AMD MI300 上为 e4m3fnuz，其他设备为 e4m3fn。",
        ),
    ),
    Loss(
        paths=("reductions*",),
        what=Text(
            "Gradients have the weights' format, float32, and are summed in it; buffers stay as they are.",
            "梯度与权重同为 float32，并以此累加和归约；缓冲区不变。",
        ),
        instead=Text(
            "Set the formats of sums where the model is sharded, as in fsdp2.", "请在分片处（如 fsdp2）设置归约格式。"
        ),
    ),
    *RECORD_LOSSES,
)

REMARKS = (
    Remark(
        when=lambda plan, request: plan.scaling != "mx",
        what=Text(
            "Needs compute capability 8.9 (Ada, Hopper, Blackwell) or AMD MI300; without torch.compile it is slower "
            "than bfloat16.",
            "需要计算能力 8.9（Ada、Hopper、Blackwell）或 AMD MI300；不用 torch.compile 会比 bfloat16 慢。",
        ),
        source="pytorch/ao#2262",
    ),
    Remark(
        when=lambda plan, request: plan.scaling != "mx",
        what=Text(
            "On a CPU it is for trials: float8 layers see CUDA's autocast only and compute in their input's format; "
            "rowwise_with_gw_hp fails behind a layer in float32, and sizes that a GPU refuses are accepted.",
            "在 CPU 上仅供试验：float8 层只查询 CUDA 的 autocast，按输入的格式计算；"
            "rowwise_with_gw_hp 接在 float32 的层之后会报错；GPU 不接受的尺寸也不会报错。",
        ),
        source="torchao/float8/float8_linear.py, 0.18.0, forward; measured; pytorch/ao#1200",
    ),
    Remark(
        when=lambda plan, request: plan.scaling == "mx",
        what=Text(
            "A prototype of torchao, for Blackwell (compute capability 10.0). Elsewhere "
            "MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL computes the same slowly.",
            "这是 torchao 的原型功能，面向 Blackwell（计算能力 10.0）。其他设备可用 "
            "MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL 得到相同结果，但很慢。",
        ),
        source="torchao/prototype/moe_training/config.py, 0.18.0",
    ),
    Remark(
        when=lambda plan, request: plan.scaling == "mx",
        what=Text(
            "Layers with a bias stay in bfloat16: torchao's MX product leaves the bias out, and it gets no gradient. "
            "Make linear layers with bias=False.",
            "带 bias 的层保持 bfloat16：torchao 的 MX 乘法会丢掉 bias，bias 也就没有梯度。请用 bias=False 创建线性层。",
        ),
        source="torchao/prototype/moe_training/tensor.py, 0.17.0 and 0.18.0; measured",
    ),
    Remark(
        when=lambda plan, request: plan.scaling == "tensorwise",
        what=Text(
            "With FSDP2, Float8LinearConfig(enable_fsdp_float8_all_gather=True) halves the gathered bytes; no other "
            "recipe has it.",
            "配合 FSDP2 时，Float8LinearConfig(enable_fsdp_float8_all_gather=True) 可使收集量减半；其他配方不支持。",
        ),
        source="torchao/float8/config.py, 0.18.0",
    ),
)

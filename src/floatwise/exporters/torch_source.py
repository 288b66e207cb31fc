# SPDX-License-Identifier: Apache-2.0
"""What exporters of PyTorch systems share in writing: their options, the source of a scaler, and what they refuse."""

from __future__ import annotations

from textwrap import indent

from floatwise.exporters.grad_scaler import grad_scaler_arguments, loss_scaler_arguments
from floatwise.exporters.python_text import call_text
from floatwise.exporters.settings import Dotted
from floatwise.exporters.system import Loss, Option, Refusal, Request
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.plan.model import LossScale, Plan

__all__ = [
    "AUTOCAST_OUTPUT_LOSS",
    "DEVICE_OPTION",
    "FLOAT32_WEIGHTS_LOSS",
    "IDLE_SCALE_LOSS",
    "SCALER_OPTION",
    "float8_refusal",
    "nested",
    "scale_where_float16",
    "scaler_source",
    "tf32_line",
]

DEVICE_OPTION = Option(
    name="device",
    choices=("cuda", "cpu"),
    default="cuda",
    meaning=Text("the device type that training runs on", "训练所在的设备类型"),
)

SCALER_OPTION = Option(
    name="scaler",
    choices=("torch", "floatwise"),
    default="torch",
    meaning=Text(
        "who scales the loss: PyTorch's GradScaler, or fw.torch.LossScaler, which holds all of the plan's loss scale",
        "由谁做损失缩放：PyTorch 的 GradScaler，或能完整表达计划中损失缩放的 fw.torch.LossScaler",
    ),
)

FLOAT32_WEIGHTS_LOSS = Loss(
    paths=("policy.param_dtype", "weights.master", "recipe"),
    what=Text(
        "The weights stay in float32 and are their own master weights: accuracy is the same, memory is not.",
        "权重保持 float32，自身就是主权重：精度不变，但内存占用不同。",
    ),
    instead=Text(
        "fw.torch.prepare keeps weights in 16 bits with master weights.",
        "fw.torch.prepare 可将权重保存为 16 位并配以主权重。",
    ),
)

AUTOCAST_OUTPUT_LOSS = Loss(
    paths=("policy.output_dtype",),
    what=Text(
        "Under autocast outputs have the format of the last operation: {after} after a linear layer. The losses of "
        "torch compute in float32 all the same on CUDA.",
        "在 autocast 下，输出格式取决于最后一个算子：线性层之后为 {after}。"
        "在 CUDA 上，torch 的损失函数仍以 float32 计算。",
    ),
    instead=Text("Cast the outputs: outputs.float().", "转换输出：outputs.float()。"),
)


class _Gone:
    """Equal to None, which a row's `after` cannot name: there None stands for any value."""

    def __eq__(self, other: object) -> bool:
        return other is None

    __hash__ = None  # type: ignore[assignment]


_SCALE_PATHS = (
    "mode initial_scale growth_factor backoff_factor growth_interval growth headroom_bits hysteresis floor ceiling"
)

IDLE_SCALE_LOSS = Loss(
    paths=tuple(f"loss_scale.{name}" for name in _SCALE_PATHS.split()),
    after=_Gone(),
    what=Text(
        "With what is said above no gradient is float16 any more, and a loss scale has nothing to do.",
        "在上述变化之后不再有 float16 梯度，损失缩放不再起作用。",
    ),
)
"""For plans whose only float16 is a value that the system does not have. It stands before the rows of a scaler."""


def scale_where_float16(plan: Plan, *dtypes: str) -> LossScale | None:
    """Returns the plan's loss scale where one of these formats, those that the system will have, is float16."""
    return plan.loss_scale if "float16" in dtypes else None


def scaler_source(scale: LossScale, request: Request, *, sharded: bool = False) -> tuple[str, str]:
    """Returns the import line (empty when `import torch` is enough) and the call of the scaler that is asked for.

    Args:
      scale: The plan's loss scale.
      request: With the options `scaler`, and `device` where the system has it (else it is CUDA).
      sharded: True for FSDP1, whose scaler of PyTorch's own is `ShardedGradScaler`.
    """
    device = request.options.get("device", "cuda")
    if request.options.get("scaler") == "floatwise":
        return "import floatwise as fw\n", call_text("fw.torch.LossScaler", loss_scaler_arguments(scale), device)
    if sharded:
        line = "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
        return line, call_text("ShardedGradScaler", {"device": device, **grad_scaler_arguments(scale)})
    return "", call_text("torch.amp.GradScaler", grad_scaler_arguments(scale), device)


def nested(call: str) -> Dotted:
    """Returns a call in source for use as an argument of another, its lines after the first indented once more."""
    first, newline, rest = call.partition("\n")
    return Dotted(first + newline + indent(rest, "    "))


def tf32_line(plan: Plan) -> str:
    """Returns the line that lets float32 products use TF32 where the plan does; else nothing: it is off by default."""
    return 'torch.set_float32_matmul_precision("high")\n' if plan.float32_matmul == "tf32" else ""


def float8_refusal(who: str, source: str) -> Refusal:
    """Returns the row for systems that cast tensors as a whole and have no float8."""
    return Refusal(
        when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
        what=Text(f"{who} casts whole tensors and has no float8.", f"{who} 转换整个张量，不支持 float8。"),
        instead=Text(
            "Export to torchao, which converts the linear layers, and write this one for the recipe bf16-mixed.",
            "请导出到 torchao（由它转换线性层），并以配方 bf16-mixed 导出此处的配置。",
        ),
        source=source,
    )

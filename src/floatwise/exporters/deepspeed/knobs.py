# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's keys that decide precision outside the fp16 and bf16 tables, and those that Trainer fills in."""

from __future__ import annotations

from floatwise.exporters.deepspeed.block_knobs import BLOCK_KNOBS, TRUTH
from floatwise.exporters.deepspeed.modes import AUTOCAST_SINCE, BUFFERS_KEPT_SINCE
from floatwise.exporters.knob import Kind, Knob, knob_table
from floatwise.language import Text

__all__ = ["CLOSED", "KNOBS", "dtype_of"]

CLOSED = ("", "fp16", "bf16", "bfloat16", "torch_autocast", "data_types")
"""Tables whose keys are all known: DeepSpeed ignores others at the top and in the last two, and refuses them in the
fp16 and bf16 tables since 0.17.1 (before, it ignored them there, too)."""

# `DtypeEnum` in runtime/config.py, without int8.
_DTYPES = {
    "float32": ("fp32", "float32", "float", "torch.float32"),
    "float16": ("fp16", "float16", "half", "torch.float16"),
    "bfloat16": ("bf16", "bfloat16", "torch.bfloat16"),
}
_ALL = tuple(name for names in _DTYPES.values() for name in names)
_SIXTEEN = tuple(name for name in _ALL if name not in _DTYPES["float32"])
_CONFIG = "runtime/config.py and runtime/constants.py, 0.19.8"


def dtype_of(value: object) -> str | None:
    """Returns the format that DeepSpeed means by a name; None when it is no name of one."""
    return next((ours for ours, theirs in _DTYPES.items() if value in theirs), None)


def _autocast() -> tuple[Knob, ...]:
    source = "runtime/torch_autocast.py and runtime/config.py, 0.19.8; tag v0.17.2"
    gone = 'before it, "bf16" or "fp16" tables are the only mixed precision'
    return (
        Knob(
            key="torch_autocast.enabled",
            kind="bool",
            default=False,
            since=AUTOCAST_SINCE,
            why=TRUTH,
            instead=gone,
            meaning=Text(
                "Forward runs in torch.autocast; weights stay in float32.",
                "前向在 torch.autocast 中运行；权重保持 float32。",
            ),
            source=source,
        ),
        Knob(
            key="torch_autocast.dtype",
            kind="str",
            choices=_SIXTEEN,
            since=AUTOCAST_SINCE,
            instead=gone,
            meaning=Text(
                "What autocast computes in. Absent: float16 on a GPU, and then the loss is not scaled.",
                "autocast 的计算格式。缺省时 GPU 上为 float16，且不缩放损失。",
            ),
            source=source,
        ),
        Knob(
            key="torch_autocast.lower_precision_safe_modules",
            kind="list",
            since=AUTOCAST_SINCE,
            instead=gone,
            meaning=Text(
                "Module classes whose gradients are communicated in dtype from ZeRO stage 1 on; absent: Linear and "
                "Conv1d to Conv3d. An empty list keeps all in float32. It does not decide what computes in dtype.",
                "从 ZeRO stage 1 起以 dtype 通信梯度的模块类；缺省为 Linear 和 Conv1d 至 Conv3d，空列表则全部为 "
                "float32。它不决定哪些模块以 dtype 计算。",
            ),
            source=f"{source}; measured on 0.19.8",
        ),
    )


def _data_types() -> tuple[Knob, ...]:
    return (
        Knob(
            key="data_types.grad_accum_dtype",
            kind="str",
            none=True,
            choices=_ALL,
            meaning=Text(
                "The format gradients are summed over micro-batches in; absent: that of the weights. Without ZeRO no "
                "other is possible; at stage 2 it does nothing for float32 weights.",
                "梯度跨微批累加的格式；缺省与权重相同。不用 ZeRO 时只能如此；stage 2 下对 float32 权重不起作用。",
            ),
            source="runtime/engine.py, `_do_optimizer_sanity_check`, 0.19.8; measured",
        ),
        Knob(
            key="data_types.param_dtype",
            kind="str",
            none=True,
            choices=_ALL,
            since=BUFFERS_KEPT_SINCE,
            instead="delete it",
            meaning=Text(
                "The format of the weights, which must be that of the enabled table.",
                "权重格式，必须与已启用的表一致。",
            ),
            source="runtime/engine.py, `_assert_valid_mixed_precision_config`, 0.19.8; tag v0.19.2",
        ),
        Knob(
            key="data_types.buffer_dtype",
            kind="str",
            none=True,
            choices=_ALL,
            since=BUFFERS_KEPT_SINCE,
            instead="before it, buffers always take the format of the weights",
            meaning=Text(
                "What buffers are cast to beside the fp16 or bf16 table; absent: they stay as they are.",
                "启用 fp16 或 bf16 表时缓冲区转换成的格式；缺省时保持不变。",
            ),
            source="runtime/engine.py, `_cast_module_mixed_precision`, 0.19.8; tag v0.19.2",
        ),
        Knob(
            key="data_types.keep_in_fp32_modules",
            kind="any",
            default="auto",
            since="0.19.8",
            instead="delete it",
            meaning=Text(
                'Name patterns of buffers (not weights) that stay in float32; "auto": those the model lists.',
                '保持 float32 的缓冲区（不含权重）的名称模式；"auto" 为模型自带的列表。',
            ),
            source="runtime/keep_in_fp32.py, 0.19.8; absent from 0.19.7",
        ),
    )


def _filled(key: str, kind: Kind, en: str, zh: str, minimum: float | None = None, default: object = None) -> Knob:
    source = "transformers/integrations/deepspeed.py, 5.24.0; accelerate/utils/dataclasses.py, 1.15.0"
    return Knob(key=key, kind=kind, minimum=minimum, default=default, auto=True, meaning=Text(en, zh), source=source)


def _communication() -> tuple[Knob, ...]:
    choices = ("fp16", "bf16", "fp32")
    return (
        Knob(
            key="communication_data_type",
            kind="str",
            none=True,
            choices=choices,
            meaning=Text(
                "The format gradients are summed over processes in; absent: that of the weights. It does nothing "
                "beside torch_autocast from ZeRO stage 1 on.",
                "梯度跨进程求和的格式；缺省与权重相同。与 torch_autocast 同用时，从 ZeRO stage 1 起不起作用。",
            ),
            source=f"{_CONFIG}, `get_communication_data_type`; measured",
        ),
        Knob(
            key="seq_parallel_communication_data_type",
            kind="str",
            none=True,
            default="fp32",
            choices=choices,
            since="0.16.5",
            instead='write "seq_parallel_comm_data_type"',
            meaning=Text(
                "The same under sequence parallelism, where it replaces the other.",
                "序列并行时的梯度通信格式，取代前者。",
            ),
            source=f"{_CONFIG}; tags v0.16.4 and v0.16.5",
        ),
        Knob(
            key="seq_parallel_comm_data_type",
            kind="str",
            none=True,
            default="fp32",
            choices=choices,
            until="0.16.5",
            instead='write "seq_parallel_communication_data_type"',
            meaning=Text("Its older name.", "其旧名称。"),
            source="runtime/constants.py, tags v0.16.4 and v0.16.5",
        ),
    )


def _gone() -> tuple[Knob, ...]:
    old = {"kind": "any", "until": "0.5.8", "instead": 'write "communication_data_type": "fp32"'}
    amp = {"kind": "any", "until": "0.19.8", "instead": 'use "torch_autocast", "bf16" or "fp16"'}
    sums = Text("Gradients are summed over processes in float32.", "梯度以 float32 跨进程求和。")
    apex = Text("Apex AMP.", "Apex AMP。")
    constants = "runtime/constants.py, tags v0.5.7 and v0.5.8"
    return (
        Knob(key="fp32_allreduce", meaning=sums, source=constants, **old),  # type: ignore[arg-type]
        Knob(key="allreduce_always_fp32", meaning=sums, source=constants, **old),  # type: ignore[arg-type]
        *(
            Knob(key=f"amp.{name}", meaning=apex, source="runtime/config.py, 0.19.7 and 0.19.8", **amp)  # type: ignore[arg-type]
            for name in ("enabled", "opt_level")
        ),
    )


KNOBS = knob_table(
    *BLOCK_KNOBS,
    *_autocast(),
    *_communication(),
    *_data_types(),
    *_gone(),
    _filled(
        "gradient_clipping",
        "float",
        "Largest norm of all gradients; 0: none.",
        "全部梯度的最大范数；0 表示不裁剪。",
        0,
        1.0,
    ),
    Knob(
        key="zero_optimization.stage",
        kind="int",
        default=0,
        minimum=0,
        maximum=3,
        auto=True,
        why="0 shards nothing, 1 optimizer states, 2 gradients as well, 3 weights as well; there is no more to shard",
        meaning=Text("What is sharded over processes.", "跨进程分片的内容。"),
        source="runtime/zero/config.py, `ZeroStageEnum`, 0.19.8",
    ),
    _filled("train_batch_size", "int", "Samples per update.", "每次更新的样本数。", 1),
    _filled("train_micro_batch_size_per_gpu", "int", "Samples per process and pass.", "每进程每次前向的样本数。", 1),
    _filled("gradient_accumulation_steps", "int", "Micro-batches per update.", "每次更新的微批数。", 1, 1),
    _filled("optimizer.type", "str", "The optimizer.", "优化器。"),
    _filled("optimizer.params.lr", "float", "Learning rate.", "学习率。"),
    _filled("optimizer.params.betas", "list", "Decay rates of the moments.", "动量衰减率。"),
    _filled("optimizer.params.eps", "float", "Added to the denominator.", "加在分母上的小量。"),
    _filled("optimizer.params.weight_decay", "float", "Weight decay.", "权重衰减。"),
    _filled("scheduler.type", "str", "The schedule of the learning rate.", "学习率调度。"),
)
"""Every row by its key."""

# SPDX-License-Identifier: Apache-2.0
"""The keys of Accelerate's configuration file and the arguments of its classes that have to do with precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from floatwise.exporters.accelerate.names import CALL_OTHERS, FILE_OTHERS, TE_ALGORITHMS, TE_FORMATS
from floatwise.exporters.grad_scaler import grad_scaler_knobs
from floatwise.exporters.knob import Knob, knob_table
from floatwise.language import Text

__all__ = ["CLOSED", "KNOBS", "OTHERS"]

_FILE = "accelerate/commands/config/config_args.py, 1.15.0"
_CLASSES = "accelerate/utils/dataclasses.py, 1.15.0"
_MODES = ("no", "fp16", "bf16", "fp8")
_BACKENDS = ("AO", "TE", "MSAMP")


@dataclass(frozen=True, kw_only=True)
class _Word(Knob):
    """A word in YAML that is false there without quotes, compared without case where Accelerate does.

    Attributes:
      word: The word.
      fails: How Accelerate fails on false.
      any_case: Whether case is of no matter.
    """

    word: str
    fails: str
    any_case: bool = False

    def fault(self, value: Any) -> str | None:
        """Returns what is wrong with a value; None when nothing is."""
        if value is False:
            return (
                f"got false, which is how YAML reads an unquoted {self.word}; `accelerate launch` then ends with "
                f'{self.fails}: write it in quotes, "{self.word}"'
            )
        return super().fault(value.lower() if self.any_case and type(value) is str else value)


def _backend(key: str) -> Knob:
    return Knob(
        key=key,
        kind="str",
        choices=_BACKENDS,
        meaning=Text(
            "Who does float8: torchao, TransformerEngine or MS-AMP; the first that is installed.",
            "由谁实现 float8：torchao、TransformerEngine 或 MS-AMP；默认取最先找到的已安装者。",
        ),
        source=_CLASSES,
    )


_FILE_ROWS = (
    _Word(
        key="mixed_precision",
        kind="str",
        none=True,
        choices=_MODES,
        any_case=True,
        word="no",
        fails="AttributeError: 'bool' object has no attribute 'lower'",
        meaning=Text(
            "The format of matrix products; without it none is lowered.", "矩阵乘法的格式；不写则不降低精度。"
        ),
        source=_FILE,
    ),
    _Word(
        key="distributed_type",
        kind="str",
        word="NO",
        fails="ValueError: You need to manually pass in `--num_processes`",
        meaning=Text("How many processes train, and how.", "多进程训练的方式。"),
        source=_FILE,
    ),
    Knob(
        key="fp16",
        kind="bool",
        meaning=Text("The older way to write mixed_precision: fp16.", "mixed_precision: fp16 的旧写法。"),
        source=_FILE,
    ),
    Knob(
        key="use_cpu",
        kind="bool",
        default=False,
        meaning=Text("Train on the CPU.", "在 CPU 上训练。"),
        source=_FILE,
    ),
    Knob(
        key="downcast_bf16",
        kind="any",
        default=False,
        meaning=Text("On a TPU with bf16: store floats in bfloat16.", "在 TPU 上配合 bf16：以 bfloat16 存储浮点数。"),
        source=_FILE,
    ),
    Knob(
        key="ipex_config",
        kind="any",
        until="1.13",
        instead="delete it",
        meaning=Text("For Intel's extension of PyTorch.", "用于 Intel 的 PyTorch 扩展。"),
        source="accelerate/commands/config/config_args.py, 1.12.0 and 1.13.0",
    ),
    _backend("fp8_config.backend"),
    _backend("fp8_config.fp8_backend"),
)

_TE_ROWS = (
    Knob(
        key="fp8_format",
        kind="str",
        none=True,
        default="HYBRID",
        choices=TE_FORMATS,
        why="TransformerEngine trains with E4M3 or HYBRID (gradients in E5M2) and asserts against E5M2 alone",
        meaning=Text("The float8 formats of TransformerEngine.", "TransformerEngine 的 float8 格式。"),
        source=f"{_CLASSES}; transformer_engine/common/recipe, 2.20.0.dev0",
    ),
    Knob(
        key="margin",
        kind="int",
        none=True,
        default=0,
        meaning=Text("Powers of two left above the largest value.", "最大值之上预留的 2 的幂次。"),
        source=_CLASSES,
    ),
    Knob(
        key="interval",
        kind="int",
        none=True,
        default=1,
        minimum=1,
        meaning=Text("Steps between new scale factors.", "更新缩放因子的间隔步数。"),
        source=_CLASSES,
    ),
    Knob(
        key="amax_history_len",
        kind="int",
        none=True,
        default=1024,
        minimum=1,
        meaning=Text("Steps whose largest values are kept.", "保留最大值历史的步数。"),
        source=_CLASSES,
    ),
    Knob(
        key="amax_compute_algo",
        kind="str",
        none=True,
        default="most_recent",
        choices=TE_ALGORITHMS,
        meaning=Text(
            "Which of these the scale factors follow: the largest or the last.",
            "缩放因子取历史中的最大值还是最近值。",
        ),
        source=_CLASSES,
    ),
    Knob(
        key="use_mxfp8_block_scaling",
        kind="bool",
        none=True,
        default=False,
        since="1.11",
        meaning=Text("One scale factor for every 32 elements (MXFP8).", "每 32 个元素一个缩放因子（MXFP8）。"),
        source=_CLASSES,
    ),
)

_AO_ROWS = (
    Knob(
        key="pad_inner_dim",
        kind="bool",
        none=True,
        default=True,
        since="1.13",
        meaning=Text("Pad matrices to dimensions that float8 units take.", "将矩阵补齐到 float8 单元要求的维度。"),
        source=_CLASSES,
    ),
    Knob(
        key="enable_fsdp_float8_all_gather",
        kind="bool",
        none=True,
        default=True,
        since="1.13",
        meaning=Text("FSDP2 gathers weights in float8.", "FSDP2 以 float8 收集权重。"),
        source=_CLASSES,
    ),
)


def _in_file(knob: Knob) -> tuple[Knob, Knob]:
    """Returns a row of a recipe class under both names that a file may give it."""
    name = knob.key.removeprefix("fp8_")
    return replace(knob, key=f"fp8_config.{name}"), replace(knob, key=f"fp8_config.fp8_{name}")


_CALL_ROWS = (
    Knob(
        key="Accelerator.mixed_precision",
        kind="str",
        none=True,
        choices=_MODES,
        meaning=Text(
            "The format of matrix products; None: as `accelerate launch` has it.",
            "矩阵乘法的格式；None 表示由 `accelerate launch` 决定。",
        ),
        source="accelerate/accelerator.py, 1.15.0",
    ),
    Knob(
        key="Accelerator.cpu",
        kind="bool",
        default=False,
        meaning=Text("Train on the CPU.", "在 CPU 上训练。"),
        source="accelerate/accelerator.py, 1.15.0",
    ),
    Knob(
        key="AutocastKwargs.enabled",
        kind="bool",
        default=True,
        meaning=Text("False: forward computes in float32.", "False 表示 forward 以 float32 计算。"),
        source=_CLASSES,
    ),
    Knob(
        key="AutocastKwargs.cache_enabled",
        kind="bool",
        none=True,
        meaning=Text("Whether a weight is cast once for its uses.", "同一权重的多次使用是否只转换一次。"),
        source=_CLASSES,
    ),
    Knob(
        key="FullyShardedDataParallelPlugin.fsdp_version",
        kind="int",
        none=True,
        default=1,
        choices=(1, 2),
        meaning=Text("The version of FSDP.", "FSDP 的版本。"),
        source=_CLASSES,
    ),
    Knob(
        key="FullyShardedDataParallelPlugin.mixed_precision_policy",
        kind="any",
        none=True,
        meaning=Text(
            "The formats of FSDP's computation, sums and buffers (FSDP1) or outputs (FSDP2); None: all as "
            "mixed_precision.",
            "FSDP 计算、归约以及缓冲区（FSDP1）或输出（FSDP2）的格式；None 表示均与 mixed_precision 相同。",
        ),
        source=_CLASSES,
    ),
    Knob(
        key="AORecipeKwargs.config",
        kind="any",
        none=True,
        meaning=Text("torchao's Float8LinearConfig.", "torchao 的 Float8LinearConfig。"),
        source=_CLASSES,
    ),
    Knob(
        key="DistributedDataParallelKwargs.comm_hook",
        kind="any",
        meaning=Text("What compresses gradients for their sum.", "梯度求和前的压缩方式。"),
        source=_CLASSES,
    ),
)

KNOBS: Mapping[str, Knob] = knob_table(
    *_FILE_ROWS,
    *(row for knob in (*_TE_ROWS, *_AO_ROWS) for row in _in_file(knob)),
    *_CALL_ROWS,
    *(replace(knob, key=f"TERecipeKwargs.{knob.key}") for knob in _TE_ROWS),
    *(replace(knob, key=f"AORecipeKwargs.{knob.key}") for knob in _AO_ROWS),
    *grad_scaler_knobs("GradScalerKwargs"),
)
"""By path in the file, and by argument of each class."""

OTHERS = FILE_OTHERS | CALL_OTHERS
"""Keys and arguments that have nothing to do with precision."""

CLOSED = (
    "",
    "fp8_config",
    "Accelerator",
    "GradScalerKwargs",
    "AutocastKwargs",
    "FullyShardedDataParallelPlugin",
    "AORecipeKwargs",
    "TERecipeKwargs",
    "DistributedDataParallelKwargs",
)
"""Tables and calls in which a key that is not known is a fault: Accelerate ends with an error on it, or, in
`fp8_config`, passes it over in silence."""

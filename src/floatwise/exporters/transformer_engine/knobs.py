# SPDX-License-Identifier: Apache-2.0
"""The arguments of TransformerEngine's recipes, with the versions that have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from floatwise.exporters.knob import Kind, Knob, knob_table
from floatwise.language import Text

__all__ = ["BLOCK_SINCE", "CURRENT_SINCE", "KNOBS", "MX_SINCE", "QUANTIZATION_AUTOCAST_SINCE", "RECIPES"]

MX_SINCE = "2.0"
"""First version with MXFP8BlockScaling (transformer_engine/common/recipe, tags v1.13 and v2.0)."""

CURRENT_SINCE = "2.2"
"""First version with Float8CurrentScaling (tags v2.1 and v2.2)."""

BLOCK_SINCE = "2.3"
"""First version with Float8BlockScaling (tags v2.2 and v2.3)."""

QUANTIZATION_AUTOCAST_SINCE = "2.9"
"""First version with `te.autocast`; `te.fp8_autocast` is deprecated since (tags v2.8 and v2.9)."""

_SINCE = {
    "DelayedScaling": "",
    "MXFP8BlockScaling": MX_SINCE,
    "Float8CurrentScaling": CURRENT_SINCE,
    "Float8BlockScaling": BLOCK_SINCE,
}

RECIPES = tuple(_SINCE)
"""The recipes that a plan can be written as."""

_SOURCE = "transformer_engine/common/recipe/__init__.py, 2.20.2 and tags v1.0 to v2.18"


def _row(key: str, kind: Kind, en: str, zh: str, **more: Any) -> Knob:
    return Knob(key=key, kind=kind, meaning=Text(en, zh), source=_SOURCE, **more)


def _of_every_recipe() -> Iterator[Knob]:
    for name, since in _SINCE.items():
        yield _row(
            f"{name}.fp8_format",
            "any",
            "HYBRID: e4m3 forward and e5m2 for gradients; E4M3: e4m3 for both.",
            "HYBRID：前向用 e4m3，梯度用 e5m2；E4M3：两者都用 e4m3。",
            since=since,
        )
        for part in ("dpa", "mha"):
            yield _row(
                f"{name}.fp8_{part}",
                "bool",
                "Whether attention's own products are float8; experimental.",
                "注意力内部的乘法是否用 float8；实验性功能。",
                since=since or "1.6",
                default=False,
            )
        yield _row(
            f"{name}.backward_override",
            "str",
            "Computes backward in high precision, from the kept operands or from the float8 ones.",
            "反向用高精度计算：取原操作数，或取反量化后的 float8 操作数。",
            since="2.15",
            none=True,
            choices=("high_precision", "dequantized"),
        )
        if name != "MXFP8BlockScaling" and name != "DelayedScaling":
            for gemm in ("fprop", "dgrad", "wgrad"):
                yield _row(
                    f"{name}.fp8_gemm_{gemm}",
                    "any",
                    "Whether partial sums are promoted (split accumulator).",
                    "部分和是否提升精度（split accumulator）。",
                    since=since,
                )


KNOBS = knob_table(
    *_of_every_recipe(),
    _row(
        "DelayedScaling.margin",
        "int",
        "Powers of two left free above amax.",
        "在 amax 之上留出的 2 的幂次。",
        default=0,
    ),
    _row("MXFP8BlockScaling.margin", "int", "Not used.", "不使用。", since=MX_SINCE, default=0),
    _row(
        "DelayedScaling.interval",
        "int",
        "Steps between new scale factors; without effect since 1.8.",
        "更新缩放因子的间隔步数；自 1.8 起不起作用。",
        until="2.2",
        instead="delete it: factors are computed every step",
    ),
    _row(
        "DelayedScaling.amax_history_len",
        "int",
        "Steps whose largest magnitudes decide the scale factor.",
        "决定缩放因子所用的历史步数。",
        minimum=1,
        default=1024,
    ),
    _row(
        "DelayedScaling.amax_compute_algo",
        "str",
        "Takes the largest or the newest magnitude of the history.",
        "取历史中的最大值或最新值。",
        choices=("max", "most_recent"),
        default="max",
    ),
    _row(
        "DelayedScaling.scaling_factor_compute_algo",
        "any",
        "A function of your own for the factor.",
        "自定义缩放因子函数。",
        none=True,
    ),
    _row(
        "DelayedScaling.override_linear_precision",
        "any",
        "Which of the three products of a linear layer stay in high precision.",
        "线性层三个乘法中哪些保持高精度。",
        until="2.0",
        instead="there is none: all three products are float8",
    ),
    _row(
        "DelayedScaling.reduce_amax",
        "bool",
        "Whether all processes share the largest magnitude.",
        "各进程是否共享最大值。",
        default=True,
    ),
    _row(
        "Float8CurrentScaling.use_power_2_scales",
        "bool",
        "Whether scale factors are powers of two.",
        "缩放因子是否取 2 的幂。",
        since="2.8",
        default=False,
    ),
    _row(
        "Float8BlockScaling.use_f32_scales",
        "bool",
        "False: scale factors are powers of two.",
        "False 表示缩放因子取 2 的幂。",
        since=BLOCK_SINCE,
        default=False,
    ),
    *(
        _row(
            f"Float8BlockScaling.{name}_block_scaling_dim",
            "int",
            "1: blocks of 1 by 128; 2: blocks of 128 by 128.",
            "1 表示 1×128 的块；2 表示 128×128 的块。",
            since=BLOCK_SINCE,
            choices=(1, 2),
            default=default,
        )
        for name, default in (("x", 1), ("w", 2), ("grad", 1))
    ),
    _row(
        "autocast.recipe",
        "any",
        "The recipe; None: chosen by the device.",
        "配方；None 表示按设备选择。",
        since=QUANTIZATION_AUTOCAST_SINCE,
        none=True,
        instead="te.fp8_autocast(enabled=True, fp8_recipe=...)",
    ),
    _row(
        "fp8_autocast.fp8_recipe",
        "any",
        "The recipe; None: chosen by the device.",
        "配方；None 表示按设备选择。",
        none=True,
    ),
    _row("fp8_autocast.enabled", "bool", "False: nothing is float8.", "False 表示不使用 float8。", default=True),
)

# SPDX-License-Identifier: Apache-2.0
"""Remarks that rows of several families share."""

from __future__ import annotations

from floatwise.language import Text

__all__ = ["SHARED_MEMORY", "SLOW_HALF", "join"]

SHARED_MEMORY = Text("Memory is shared with the CPU.", "内存与 CPU 共用。")
SLOW_HALF = Text(
    "float16 arithmetic runs at 1/64 of the float32 rate here (CUDA programming guide): it saves memory, never time.",
    "这里的 float16 运算速度只有 float32 的 1/64（CUDA 编程指南）：只省显存，不会更快。",
)


def join(*remarks: Text) -> Text:
    """Returns the remarks as one text, in order."""
    return Text(" ".join(r.en for r in remarks), "".join(r.zh for r in remarks))

# SPDX-License-Identifier: Apache-2.0
"""The formats that a training step's products were asked for and computed in, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floatwise.language import Text
from floatwise.planner.decision import Measured, ProductFormat
from floatwise.report import numbers
from floatwise.report.plain import plain

__all__ = ["ASKED", "FORMAT", "RAN", "ProductRow", "product_note", "product_rows"]

FORMAT = Text("format", "格式")
ASKED = Text("asked for", "程序要求")
RAN = Text("ran", "实际运行")
_CELL = Text("{count} ({share} of the multiplications)", "{count} 个（占乘法的 {share}）")
_NOTE = Text(
    "Matrix products and convolutions of one training step under {recipe}: as the traced program asks for them, and "
    "as the program compiled for {backend} computes them.",
    "{recipe} 下一个训练步中的矩阵乘法与卷积：左为追踪到的程序所要求的格式，"
    "右为针对 {backend} 编译后的程序实际使用的格式。",
)
_NOTE_ASKED = Text(
    "Matrix products and convolutions of one training step under {recipe}; the backend's own kernels compute what is "
    "asked for.",
    "{recipe} 下一个训练步中的矩阵乘法与卷积；后端自身的内核按程序的要求计算。",
)


@dataclass(frozen=True)
class ProductRow:
    """The products in one format, as text; `ran` is empty where that is what was asked for."""

    format: str
    asked: str
    ran: str


def product_rows(measured: Measured | None) -> list[ProductRow]:
    """Returns a row for each format, the widest share first; none where products were not looked at."""
    products = measured.products if measured is not None else None
    if products is None:
        return []
    names = sorted({*products.asked, *(products.ran or {})}, key=lambda name: (-products.share(name), name))
    return [
        ProductRow(plain(name), _cell(products.asked, name), "" if products.ran is None else _cell(products.ran, name))
        for name in names
    ]


def product_note(measured: Measured) -> str:
    """Returns what is counted."""
    products = measured.products
    if products is None or products.ran is None:
        return _NOTE_ASKED.format(recipe=plain(measured.recipe))
    return _NOTE.format(recipe=plain(measured.recipe), backend=plain(products.backend))


def _cell(rows: Mapping[str, ProductFormat], name: str) -> str:
    row = rows.get(name)
    return numbers.MISSING if row is None else _CELL.format(count=row.count, share=numbers.percent(row.share))

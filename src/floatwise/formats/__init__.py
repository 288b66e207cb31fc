# SPDX-License-Identifier: Apache-2.0
"""Number formats: one row per format, the facts that follow from it, and rounding to it.

`floatwise.formats.torch` rounds PyTorch tensors; this package itself needs NumPy only.
"""

from __future__ import annotations

from floatwise.formats.block_table import BLOCK_FORMATS, find_format, get_block_format
from floatwise.formats.blocks import quantize_blocks
from floatwise.formats.coding import decode, encode
from floatwise.formats.facts import format_facts
from floatwise.formats.info import BlockFormat, Format
from floatwise.formats.rounding import round_to_format
from floatwise.formats.table import FORMATS, get_format

__all__ = [
    "BLOCK_FORMATS",
    "FORMATS",
    "BlockFormat",
    "Format",
    "decode",
    "encode",
    "find_format",
    "format_facts",
    "get_block_format",
    "get_format",
    "quantize_blocks",
    "round_to_format",
]

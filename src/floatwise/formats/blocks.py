# SPDX-License-Identifier: Apache-2.0
"""Quantising arrays to block formats: a shared scale per block, then every element rounded under it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floatwise.errors import BadInputError
from floatwise.formats.block_table import get_block_format
from floatwise.formats.info import BlockFormat
from floatwise.formats.rounding import FloatArray, round_to_format

__all__ = ["quantize_blocks"]


def quantize_blocks(x: FloatArray, block_format: BlockFormat | str, axis: int = -1) -> NDArray[np.float32]:
    """Returns the values of `x` as the block format would hold them.

    Blocks are consecutive along `axis`; the last one may be shorter. Elements are rounded to nearest even and
    never past the element's largest value. A block that holds an infinity or NaN becomes NaN as a whole: the
    MX specification leaves this open, and the shared scale is where a block can say it.

    Args:
      x: float32 values (other floating types are converted), at least one axis.
      block_format: A block format or its name.
      axis: Axis along which blocks run; in a matrix product, the one that is summed over.

    Returns:
      A float32 array of `x`'s shape.

    Raises:
      BadInputError: `x` has no axis, or is not floating point.

    Source: OCP MX 1.0, section 6.3; for nvfp4 arXiv:2509.25149, from whose procedure this differs in dividing
    by the scale rather than multiplying by its rounded reciprocal.
    """
    row = get_block_format(block_format)
    if x.ndim == 0:
        raise BadInputError(f"got a scalar; {row.name} needs at least one axis for its blocks of {row.block_size}")
    moved = np.moveaxis(round_to_format(x, "float32"), axis, -1)
    blocks = _as_blocks(moved.astype(np.float64), row.block_size)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        amax = np.abs(blocks).max(axis=-1, keepdims=True)
        scale = _nvfp4_scale(amax, row) if row.tensor_scale else _mx_scale(amax, row)
        scaled = np.where(scale == 0, 0.0, blocks / scale)
        rounded = round_to_format(scaled, row.element, saturate=True).astype(np.float64) * scale
    # A block without a finite scale is lost; adding zero turns minus zero, which integers lack, into zero.
    rounded = np.where(np.isfinite(scale), rounded, np.nan) + (0.0 if row.twos_complement else -0.0)
    flat = rounded.reshape(*moved.shape[:-1], blocks.shape[-2] * row.block_size)[..., : moved.shape[-1]]
    return np.moveaxis(flat, -1, axis).astype(np.float32)


def _as_blocks(x: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Splits the last axis into blocks, filling the last one with zeros, which no scale depends on."""
    missing = -x.shape[-1] % size
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // size, size)


def _mx_scale(amax: NDArray[np.float64], fmt: BlockFormat) -> NDArray[np.float64]:
    """Largest power of two not above amax, over the largest power of two of the element, within E8M0."""
    exponent = np.frexp(amax)[1] - 1 - fmt.element.max_exponent
    # frexp calls the exponent of zero 0; any scale will do for zeros.
    exponent = np.clip(exponent, fmt.scale.min_exponent, fmt.scale.max_exponent)
    return np.where(np.isfinite(amax), np.ldexp(1.0, exponent), np.nan)


def _nvfp4_scale(amax: NDArray[np.float64], fmt: BlockFormat) -> NDArray[np.float64]:
    """Block scale in its own format times the tensor's float32 scale, which maps its amax to the largest."""
    finite = amax[np.isfinite(amax)]
    largest = float(finite.max()) if finite.size else 0.0
    tensor_scale = float(np.float32(largest / (fmt.element.max * fmt.scale.max)))
    if tensor_scale == 0:
        return np.where(np.isfinite(amax), 0.0, np.nan)
    block_scale = round_to_format(amax / fmt.element.max / tensor_scale, fmt.scale, saturate=True)
    return np.where(np.isfinite(amax), block_scale.astype(np.float64) * tensor_scale, np.nan)

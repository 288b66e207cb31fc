# SPDX-License-Identifier: Apache-2.0
"""Matrix units by generation: which formats they take, and how dimensions should be aligned.

Sources:
  NVIDIA: Matrix Multiplication Background User's Guide, "Tensor Core Requirements": multiples of 16 bytes,
  that is 8 elements of 16 bits, 4 of TF32, 16 of FP8 and 32 of FP4. Required for FP8 and FP4; since cuBLAS 11
  other 16-bit and TF32 sizes run too, more slowly.
  AMD: instruction set architecture guides (CDNA, RDNA 3, RDNA 4): the smallest matrix instructions for 16-bit
  formats are 16 x 16 x 16.
"""

from __future__ import annotations

from floatwise.hardware.device import MatrixPath

__all__ = ["ada", "ampere", "blackwell", "float8_ocp", "uniform", "volta"]

Rate = float | None


def volta(half: Rate) -> dict[str, MatrixPath]:
    """Volta and Turing: float16 only."""
    return {"float16": MatrixPath(half, 8)}


def ampere(half: Rate, tfloat32: Rate) -> dict[str, MatrixPath]:
    """Ampere: adds bfloat16 at the rate of float16, and TF32."""
    return volta(half) | {"bfloat16": MatrixPath(half, 8), "tfloat32": MatrixPath(tfloat32, 4)}


def ada(half: Rate, tfloat32: Rate, float8: Rate) -> dict[str, MatrixPath]:
    """Ada and Hopper: adds both float8 formats at one rate."""
    return ampere(half, tfloat32) | float8_ocp(float8)


def blackwell(half: Rate, tfloat32: Rate, float8: Rate, float4: Rate) -> dict[str, MatrixPath]:
    """Blackwell: adds 4-bit floats with block scales."""
    return ada(half, tfloat32, float8) | {"float4_e2m1fn": MatrixPath(float4, 32)}


def float8_ocp(peak: Rate, alignment: int = 16, native: bool = True) -> dict[str, MatrixPath]:
    """The two float8 formats of the Open Compute Project."""
    path = MatrixPath(peak, alignment, native=native)
    return {"float8_e4m3fn": path, "float8_e5m2": path}


def uniform(alignment: int, **peaks: Rate) -> dict[str, MatrixPath]:
    """Formats that share one alignment, by name."""
    return {name: MatrixPath(peak, alignment) for name, peak in peaks.items()}

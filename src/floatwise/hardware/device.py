# SPDX-License-Identifier: Apache-2.0
"""What is known about one device: its matrix units, its peak rates, and the document that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from floatwise.language import Text

__all__ = ["Device", "Kind", "MatrixPath"]

Kind = Literal["gpu", "tpu", "accelerator", "cpu"]


@dataclass(frozen=True)
class MatrixPath:
    """How one number format runs on a matrix unit.

    Attributes:
      peak_tflops: Dense peak (never the sparse figure); None where the vendor publishes none, and for CPUs,
        where it depends on cores and clock.
      alignment: Multiple that matrix dimensions should have, in elements.
      accumulate: Format in which products are summed; `peak_tflops` is the rate with this accumulation.
      native: False when the format is accepted but computed by other means, so that it cannot be faster.
      flops_per_cycle_per_core: CPUs only; None where implementations differ.
    """

    peak_tflops: float | None
    alignment: int
    accumulate: str = "float32"
    native: bool = True
    flops_per_cycle_per_core: int | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """One row of the hardware table.

    Attributes:
      id: Canonical name, vendor first ("nvidia-t4").
      name: The name the vendor gives it.
      architecture: Generation ("Turing").
      compute_capability: CUDA's, for NVIDIA devices only.
      matrix: Formats with a matrix unit, by canonical format name; "tfloat32" is a key of its own.
      vector_tflops: Peak rates outside the matrix units, by format name, where published.
      bandwidth_gb_per_second: Peak memory bandwidth; None where it depends on the machine.
      memory_gib: Memory sizes it is sold with, as marketed.
      unreliable: Formats it accepts and computes wrongly, with what happens.
      notes: What else decides about precision here.
      aliases: Further names that are accepted; `id` and `name` are accepted anyway.
      source: Document that the figures are from.
    """

    id: str
    name: str
    vendor: str
    kind: Kind
    architecture: str
    compute_capability: str | None = None
    matrix: Mapping[str, MatrixPath] = field(default_factory=dict)
    vector_tflops: Mapping[str, float] = field(default_factory=dict)
    bandwidth_gb_per_second: float | None = None
    memory_gib: tuple[float, ...] = ()
    unreliable: Mapping[str, Text] = field(default_factory=dict)
    notes: Text | None = None
    aliases: tuple[str, ...] = ()
    source: str

    def __hash__(self) -> int:
        return hash(self.id)

    def has_matrix(self, format: str) -> bool:
        """Returns True when a real hardware unit multiplies matrices of this format.

        Emulation does not count: a T4 has no bfloat16 unit, whatever a framework says it supports.

        Args:
          format: Canonical format name ("bfloat16").
        """
        path = self.matrix.get(format)
        return path is not None and path.native

# SPDX-License-Identifier: Apache-2.0
"""The rates that the roofline model reckons with, from a device's row and assumptions about what is reached of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from floatwise.errors import BadInputError
from floatwise.hardware import Device

__all__ = ["OPTIMISTIC", "PESSIMISTIC", "TYPICAL", "Assumption", "Rates", "device_rates"]


@dataclass(frozen=True)
class Rates:
    """What a device does in a second.

    Attributes:
      matrix: FLOP/s of products by operand format; "tfloat32" for float32 operands that are rounded.
      vector: FLOP/s of other operators, and of products in formats without a unit.
      bytes_per_second: Of its memory.
      kernel_seconds: What the smallest operator takes on the device.
      start_seconds: What the host takes to start an operator.
      is_asynchronous: True when the host starts operators while the device works.
      of_operators: FLOP/s of operators that were measured apart, by ("convolution" or "attention", format).
    """

    matrix: Mapping[str, float]
    vector: float
    bytes_per_second: float
    kernel_seconds: float = 0.0
    start_seconds: float = 0.0
    is_asynchronous: bool = False
    of_operators: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def flops_per_second(self, name: str, format: str, matrix: bool, float32_matmul: str) -> float:
        """Returns the rate of an operator.

        Args:
          name: PyTorch's name.
          format: Of its operands.
          matrix: Whether it is a product.
          float32_matmul: The plan's.
        """
        if not matrix:
            return self.vector
        for (part, of_format), rate in self.of_operators.items():
            if part in name and of_format == format:
                return rate
        if format == "float32" and float32_matmul == "tf32" and "tfloat32" in self.matrix:
            return self.matrix["tfloat32"]
        return self.matrix.get(format, self.vector)


@dataclass(frozen=True)
class Assumption:
    """How much of a device's peaks is reached, and what PyTorch takes for an operator.

    Attributes:
      matrix: Share of the peak in products.
      memory: Share of the bandwidth.
      kernel_seconds: As in `Rates`.
      start_seconds: As in `Rates`.
    """

    matrix: float
    memory: float
    kernel_seconds: float
    start_seconds: float

    def of(self, rates: Rates) -> Rates:
        """Returns measured rates, for which nothing needs to be assumed."""
        return rates


#: Chosen, from what is commonly seen with PyTorch in eager mode on NVIDIA GPUs: half of the peak in the products of a
#: real model, four fifths of the bandwidth, 2 to 5 µs for a kernel and 12 to 25 µs for the host to start one,
#: Python and autograd included. Not measured here.
TYPICAL = Assumption(matrix=0.5, memory=0.8, kernel_seconds=3e-6, start_seconds=12e-6)
OPTIMISTIC = Assumption(matrix=1.0, memory=1.0, kernel_seconds=2e-6, start_seconds=0.0)
PESSIMISTIC = Assumption(matrix=0.3, memory=0.6, kernel_seconds=5e-6, start_seconds=25e-6)


def device_rates(device: Device, assumption: Assumption = TYPICAL) -> Rates:
    """Returns the rates of a device's row.

    Products in a format without a unit have the rate of float32, since there they are computed by conversion.

    Args:
      device: The row.
      assumption: What is reached of it.

    Raises:
      BadInputError: The row has no peak rate or no bandwidth, as those of CPUs: they depend on the machine.
    """
    peaks = {
        name: path.peak_tflops for name, path in device.matrix.items() if path.native and path.peak_tflops is not None
    }
    vector = device.vector_tflops.get("float32") or peaks.get("float32")
    if vector is None or device.bandwidth_gb_per_second is None:
        raise BadInputError(
            f"got {device.name}, whose row has no peak rate and bandwidth to predict from; choose another target "
            "(`floatwise info --devices`), or measure on the machine itself"
        )
    products = {"float32": vector, **{k: v for k, v in device.vector_tflops.items() if k == "float16"}, **peaks}
    return Rates(
        matrix={name: 1e12 * assumption.matrix * peak for name, peak in products.items()},
        vector=1e12 * assumption.matrix * vector,
        bytes_per_second=1e9 * assumption.memory * device.bandwidth_gb_per_second,
        kernel_seconds=assumption.kernel_seconds,
        start_seconds=assumption.start_seconds,
        is_asynchronous=device.kind != "cpu",
    )

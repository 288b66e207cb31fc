# SPDX-License-Identifier: Apache-2.0
"""The ways in which float8 training scales the operands of its matrix products, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from floatwise.errors import UnknownNameError
from floatwise.formats import Format, get_block_format, get_format

__all__ = ["FLOAT8_SCALINGS", "Float8Scaling", "Granularity", "get_float8_scaling"]

#: How many elements share a scale: all of the tensor, those of a row that is summed over, or 32 of them.
Granularity = Literal["tensorwise", "rowwise", "mx"]

_TORCHAO = "torchao 0.18, float8/config.py"
_MX = "OCP Microscaling Formats (MX) Specification 1.0, 2023, section 6.3"

# torchao 0.18, float8/config.py: `torch._scaled_mm` takes multiples of 16 only; prototype/mx_formats/mx_tensor.py:
# a dimension that is summed over must be whole blocks.
_MULTIPLE = 16
_BLOCK = get_block_format("mxfp8_e4m3").block_size

#: The e5m2 of the family that an e4m3 belongs to.
_GRADIENT_RANGE = {"float8_e4m3fn": "float8_e5m2", "float8_e4m3fnuz": "float8_e5m2fnuz"}


@dataclass(frozen=True, kw_only=True)
class Float8Scaling:
    """How the operands of a linear layer's three products become float8.

    Attributes:
      name: What it is called here, and in torchao where that has it.
      granularity: How many elements share a scale.
      wide_gradients: True when gradients of outputs take e5m2, with more range and less precision than e4m3.
      power_of_two_scales: True when scales are rounded down to powers of two, so that scaling itself is exact.
      rounded_weight_gradient: False when the weight's gradient is a product in high precision.
      tensorwise_transposed_weight: True when the weight has one scale for the product that gives the input's gradient.
      block_scale: The power of two of an MX block: `floor` is that of amax over that of the largest value, so
        that the largest elements may be cut; `rceil` is the smallest at which none is.
      source: Where it comes from.
    """

    name: str
    granularity: Granularity
    wide_gradients: bool = False
    power_of_two_scales: bool = False
    rounded_weight_gradient: bool = True
    tensorwise_transposed_weight: bool = False
    block_scale: Literal["floor", "rceil"] = "floor"
    source: str

    @property
    def multiple(self) -> int:
        """What a dimension that is summed over must be a multiple of, on the hardware."""
        return _BLOCK if self.granularity == "mx" else _MULTIPLE

    @property
    def block_size(self) -> int:
        """Elements of an MX block."""
        return _BLOCK

    def gradient_format(self, forward: Format) -> Format:
        """Returns the format of gradients where inputs and weights have `forward`."""
        return get_format(_GRADIENT_RANGE[forward.name]) if self.wide_gradients else forward


_ROWS = (
    Float8Scaling(
        name="tensorwise",
        granularity="tensorwise",
        wide_gradients=True,
        source=f"{_TORCHAO}, recipe `tensorwise`; TransformerEngine's Float8CurrentScaling with Format.HYBRID",
    ),
    Float8Scaling(
        name="rowwise",
        granularity="rowwise",
        power_of_two_scales=True,
        source=f"{_TORCHAO}, recipe `rowwise`",
    ),
    Float8Scaling(
        name="rowwise_with_gw_hp",
        granularity="rowwise",
        power_of_two_scales=True,
        rounded_weight_gradient=False,
        tensorwise_transposed_weight=True,
        source=f"{_TORCHAO}, recipe `rowwise_with_gw_hp`",
    ),
    Float8Scaling(
        name="mx",
        granularity="mx",
        source=f"{_MX}; torchao 0.18, prototype/mx_formats, ScaleCalculationMode.FLOOR",
    ),
    Float8Scaling(
        name="mx_wide_gradients",
        granularity="mx",
        wide_gradients=True,
        source=f"{_MX}; TransformerEngine's MXFP8BlockScaling with Format.HYBRID",
    ),
    Float8Scaling(
        name="mx_rceil",
        granularity="mx",
        block_scale="rceil",
        source="docs.nvidia.com/cuda/cublas, 1D block quantization; torchao 0.18, ScaleCalculationMode.RCEIL",
    ),
)

FLOAT8_SCALINGS: Mapping[str, Float8Scaling] = MappingProxyType({row.name: row for row in _ROWS})
"""Every scaling by its name."""


def get_float8_scaling(name: Float8Scaling | str) -> Float8Scaling:
    """Returns the scaling of that name; a scaling is returned as it is.

    Raises:
      UnknownNameError: No row has the name.
    """
    if isinstance(name, Float8Scaling):
        return name
    row = FLOAT8_SCALINGS.get(name)
    if row is None:
        raise UnknownNameError("float8 scaling", name, FLOAT8_SCALINGS)
    return row

# SPDX-License-Identifier: Apache-2.0
"""How much of a script's products float8 recipes would compute in float8."""

from __future__ import annotations

from floatwise.probe.recording import Recording

__all__ = ["recorded_float8_share"]

#: Inputs and outputs of a layer must be multiples of this: the hardware's own demand, as torchao checks it
#: (torchao.float8.float8_linear_utils, 0.18).
_MULTIPLE = 16


def recorded_float8_share(recording: Recording) -> float:
    """Returns the share of the products' FLOPs in linear layers that float8 takes, 0 to 1."""
    products = [site for site in recording.matrix_sites if site.k]
    layers = [site for site in products if site.kind == "linear" and ":" not in site.path]  # modules, not functions
    eligible = [site for site in layers if site.n % _MULTIPLE == 0 and site.k % _MULTIPLE == 0]
    total = sum(site.flops for site in products)
    return sum(site.flops for site in eligible) / total if total else 0.0

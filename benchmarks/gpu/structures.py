# SPDX-License-Identifier: Apache-2.0
"""What is more than one operator: nested regions, islands, checkpointing, custom functions. Each gives dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.gpu.dtypes import Seen, float_dtypes
from benchmarks.gpu.sides import Side
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.utils.checkpoint import checkpoint

__all__ = ["STRUCTURES"]


def _other(dtype: torch.dtype) -> torch.dtype:
    return torch.bfloat16 if dtype is torch.float16 else torch.float16


def _square(side: Side) -> Tensor:
    (x,) = side.place([torch.linspace(0.1, 0.9, 16).view(4, 4)])
    return x.requires_grad_()


def nested(side: Side, dtype: torch.dtype) -> list[Seen]:
    """Regions of either format within each other, and an island within those."""
    x, found = _square(side), []

    def look(place: str) -> None:
        for name, result in (("product", x @ x), ("softmax", (x @ x).softmax(-1)), ("exp", x.to(dtype).exp())):
            found.append(Seen(f"{name} {place}", float_dtypes(result)))

    with side.region(dtype):
        look("in the region")
        with side.region(_other(dtype)):
            look("in a region of the other format")
            with side.region(dtype, enabled=False):
                look("in an island")
                with side.region(dtype):
                    look("in a region in an island")
        look("in the region again")
    look("outside")
    return found


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.island = nn.Linear(4, 4)

    def forward(self, x: Tensor, side: Side, dtype: torch.dtype, found: list[Seen]) -> Tensor:
        h = F.gelu(self.linear(x))
        found.append(Seen("gelu of a product", float_dtypes(h)))
        with side.region(dtype, enabled=False):
            h = self.island(h.float())
        found.append(Seen("linear in an island", float_dtypes(h)))
        out: Tensor = self.norm(h + x)
        found.append(Seen("layer_norm", float_dtypes(out)))
        return out


def _checkpointed(reentrant: bool) -> Callable[[Side, torch.dtype], list[Seen]]:
    def structure(side: Side, dtype: torch.dtype) -> list[Seen]:
        """A block that the backward pass computes again."""
        found: list[Seen] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            block = side.model(_Block())
        x = _square(side)
        with side.region(dtype):
            out = checkpoint(
                lambda x: block(x, side, dtype, found), x, use_reentrant=reentrant, preserve_rng_state=False
            )
            logits = out @ out
        logits.float().sum().backward()
        return [*found, *(Seen(f"gradient of {name}", float_dtypes(p.grad)) for name, p in block.named_parameters())]

    return structure


def _custom(cast_inputs: torch.dtype | None) -> Callable[[Side, torch.dtype], list[Seen]]:
    def structure(side: Side, dtype: torch.dtype) -> list[Seen]:
        """A custom function, with or without `cast_inputs`, whose backward pass computes a product."""
        found: list[Seen] = []

        class Squared(torch.autograd.Function):
            @staticmethod
            @custom_fwd(device_type=side.device, cast_inputs=cast_inputs)  # type: ignore[untyped-decorator]
            def forward(ctx: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                found.append(Seen("input of forward", float_dtypes(x)))
                return x @ x

            @staticmethod
            @custom_bwd(device_type=side.device)  # type: ignore[untyped-decorator]
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                (x,) = ctx.saved_tensors
                found.append(Seen("gradient of backward", float_dtypes(grad)))
                found.append(Seen("product in backward", float_dtypes(x @ x)))
                found.append(Seen("exp in backward", float_dtypes(x.to(dtype).exp())))
                gradient: Tensor = grad.to(x.dtype) @ x + x @ grad.to(x.dtype)
                return gradient

        x = _square(side)
        with side.region(dtype):
            out = Squared.apply(x @ x)  # type: ignore[no-untyped-call]
        found.append(Seen("output of forward", float_dtypes(out)))
        out.float().sum().backward()
        return [*found, Seen("gradient of the input", float_dtypes(x.grad))]

    return structure


def weights_in_regions(side: Side, dtype: torch.dtype) -> list[Seen]:
    """A layer that is used twice in a region, without gradients first: its weight is cast once."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = side.model(nn.Linear(4, 4))
    x, found = _square(side), []
    with side.region(dtype):
        with torch.no_grad():
            found.append(Seen("without gradients", float_dtypes(layer(x))))
        out = layer(layer(x))
        found.append(Seen("with gradients", float_dtypes(out)))
    out.float().sum().backward()
    return [*found, *(Seen(f"gradient of {name}", float_dtypes(p.grad)) for name, p in layer.named_parameters())]


STRUCTURES: Mapping[str, Callable[[Side, torch.dtype], list[Seen]]] = {
    "nested regions and islands": nested,
    "checkpointing": _checkpointed(False),
    "reentrant checkpointing": _checkpointed(True),
    "custom function": _custom(None),
    "custom function, cast_inputs=float32": _custom(torch.float32),
    "weights used twice in a region": weights_in_regions,
}
"""By name; what each records is in the order of execution."""

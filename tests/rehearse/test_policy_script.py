# SPDX-License-Identifier: Apache-2.0
"""A script's custom autograd functions, decorated for CUDA, on a machine that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tap.listening import Listener
from torch import Tensor, nn

from floatwise.plan import recipe
from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch.script.applied import AppliedPlan

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA's own region is in force there")


def present() -> tuple[Callable[..., Any], Any]:
    return torch.amp.custom_fwd, torch.amp.custom_bwd(device_type="cuda")


def deprecated() -> tuple[Callable[..., Any], Any]:
    return lambda device_type, **options: torch.cuda.amp.custom_fwd(**options), torch.cuda.amp.custom_bwd


def seen_by_a_script(decorators: Callable[[], tuple[Callable[..., Any], Any]]) -> dict[str, torch.dtype]:
    """Runs a model with two custom functions, one in float32, and returns the dtypes of their products."""
    forward_of, backward_of = decorators()
    seen: dict[str, torch.dtype] = {}

    def function(name: str, **options: Any) -> Any:
        class Custom(torch.autograd.Function):
            @staticmethod
            @forward_of(device_type="cuda", **options)  # type: ignore[untyped-decorator]
            def forward(ctx: Any, x: Tensor) -> Tensor:
                seen[f"{name} forward"] = (x @ x).dtype
                return x.clone()

            @staticmethod
            @backward_of  # type: ignore[untyped-decorator]
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                seen[f"{name} backward"] = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
                return grad

        return Custom.apply

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.island, self.plain = function("island", cast_inputs=torch.float32), function("plain")

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.plain(self.island(self.linear(x)).bfloat16())
            return result

    Model()(torch.randn(4, 4)).sum().backward()
    return seen


@pytest.mark.filterwarnings("ignore:.torch.cuda.amp.custom_")
@pytest.mark.parametrize("decorators", [present, deprecated])
@pytest.mark.parametrize("name", ["bf16-mixed", "fp32"])
def test_they_follow_the_region_of_the_plan(name: str, decorators: Any) -> None:
    applied, heard = AppliedPlan(recipe(name)), Listener()
    with Tap([applied, heard]) as tap:
        existing = ExistingPrecision(tap, compute_dtype=applied.compute_dtype)
        existing.install()
        applied.install(tap, existing)
        seen = seen_by_a_script(decorators)
    low = torch.bfloat16 if name == "bf16-mixed" else torch.float32
    assert seen == {
        "island forward": torch.float32,
        "island backward": torch.float32,
        "plain forward": low,
        "plain backward": low,
    }
    assert heard.of("found") == []

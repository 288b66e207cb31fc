# SPDX-License-Identifier: Apache-2.0
"""Part 5: the kernels of each recipe's products, and which of them ran on matrix units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from benchmarks.gpu.kernel_names import kind_of
from benchmarks.gpu.machine import device_row
from benchmarks.gpu.models import Model, model_of
from benchmarks.gpu.part import Part
from benchmarks.gpu.speed import settled, training
from torch.profiler import ProfilerActivity, profile

from floatwise.plan import Plan, recipe

__all__ = ["RECIPES", "profiled_kernels", "run", "seconds_by_kernel", "shares"]

#: The format whose matrix unit a recipe's products are to run on; None where none is asked for.
RECIPES: Mapping[str, str | None] = {
    "fp32": None,
    "tf32": "tfloat32",
    "bf16-mixed": "bfloat16",
    "fp16-mixed": "float16",
    "bf16-master": "bfloat16",
}
_SHOWN = 6
_NO_KERNELS = ("Memcpy", "Memset", "Optimizer.", "ProfilerStep")


def run(part: Part) -> None:
    """Profiles two models under each recipe."""
    row = device_row()
    for name in ("text_gpt, large batch", "digits_cnn, large batch"):
        model = model_of(name, part.size)
        for recipe_name, wanted in RECIPES.items():
            what = f"{model.name}, {recipe_name}"
            if not part.has_time_for(what, 3):
                continue
            with part.attempting(f"kernels, {what}"):
                kernels = profiled_kernels(model, recipe(recipe_name))
                found = shares(kernels)
                _give(part, what, kernels, found)
                if wanted is not None and (row is None or row.has_matrix(wanted)):
                    part.check(
                        f"matrix units, {what}",
                        found["matrix unit"] > 0,
                        f"{found['matrix unit']:.0%} of the time of kernels on matrix units, "
                        f"{found['product']:.0%} in other products",
                    )


def shares(kernels: Mapping[str, float]) -> dict[str, float]:
    """Returns the shares of time in products on matrix units, in other products, and in the rest.

    Args:
      kernels: Seconds by the kernel's name.
    """
    found = {"matrix unit": 0.0, "product": 0.0, "other": 0.0}
    for name, seconds in kernels.items():
        found[kind_of(name)] += seconds
    total = sum(found.values())
    return {kind: seconds / total if total else 0.0 for kind, seconds in found.items()}


def profiled_kernels(model: Model, plan: Plan) -> dict[str, float]:
    """Returns the seconds of each kernel in two steps.

    Args:
      model: The model.
      plan: The plan.

    Raises:
      RuntimeError: The profiler saw none.
    """
    with ExitStack() as stack:
        step = training(model, settled(plan), "cuda", stack)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
            step()
            step()
            torch.cuda.synchronize()
    found = seconds_by_kernel(profiled.events() or ())
    if not found:
        raise RuntimeError("torch.profiler saw no kernel: is CUPTI installed, and may this user profile the GPU?")
    return found


def seconds_by_kernel(events: Iterable[Any]) -> dict[str, float]:
    """Returns the time of each kernel among the events of torch.profiler."""
    found: dict[str, float] = {}
    for event in events:
        # What surrounds kernels on the device's own timeline would count them twice.
        surrounds = getattr(event, "is_user_annotation", False) or event.name.startswith(_NO_KERNELS)
        if str(event.device_type).endswith("CUDA") and not surrounds:
            found[event.name] = found.get(event.name, 0.0) + 1e-6 * event.self_device_time_total
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _give(part: Part, what: str, kernels: Mapping[str, float], found: Mapping[str, float]) -> None:
    products = [(name, seconds) for name, seconds in kernels.items() if kind_of(name) != "other"]
    used = "matrix units" if found["matrix unit"] > 0 else "no matrix unit"
    part.row(
        f"{what:38} {used}: {found['matrix unit']:.0%} of the time of kernels; other products {found['product']:.0%}",
        what=what,
        used_matrix_units=found["matrix unit"] > 0,
        shares=dict(found),
        milliseconds=1e3 * sum(kernels.values()) / 2,
        products=[
            {"kernel": name, "kind": kind_of(name), "milliseconds": 1e3 * seconds / 2} for name, seconds in products
        ],
        others=[
            {"kernel": name, "milliseconds": 1e3 * seconds / 2}
            for name, seconds in kernels.items()
            if kind_of(name) == "other"
        ][:20],
    )
    for name, seconds in products[:_SHOWN]:
        part.row(f"    {1e3 * seconds / 2:8.3f} ms  {kind_of(name):11}  {name[:90]}", of=what, kernel=name)

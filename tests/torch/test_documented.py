# SPDX-License-Identifier: Apache-2.0
"""Every parameter of the public Python surface is explained, with where its default comes from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import floatwise.torch
from floatwise.torch import LossScaler, Precision, WeightAverage

#: Methods whose parameters are a closure of the optimizer's or `GradScaler`'s own, explained there.
METHODS: list[Callable[..., Any]] = [
    Precision.accumulate,
    Precision.backward,
    Precision.grad,
    Precision.step,
    Precision.unscale,
    Precision.zero_grad,
    LossScaler.agree,
    LossScaler.update_from,
    WeightAverage.update,
]
PUBLIC: dict[str, Callable[..., Any]] = {
    name: value
    for name in floatwise.torch.__all__
    # What a person makes, and not what is handed to them.
    if callable(value := getattr(floatwise.torch, name))
    and name not in ("NonFiniteGradient", "Precision", "ScaleChange", "StepInfo")
}
SURFACE = {**PUBLIC, **{method.__qualname__: method for method in METHODS}}


def explained(thing: Callable[..., Any]) -> dict[str, str]:
    """Returns what the section `Args:` says, by parameter."""
    section = re.search(r"\nArgs:\n(.*?)(?:\n\S|\Z)", inspect.getdoc(thing) or "", re.DOTALL)
    rows = re.findall(r"^  (\*{0,2}\w+): (.*?)(?=^  \*{0,2}\w+: |\Z)", section.group(1) if section else "", re.M | re.S)
    return {name.lstrip("*"): text for name, text in rows}


@pytest.mark.parametrize("name", SURFACE)
def test_every_parameter_is_explained(name: str) -> None:
    parameters = {n: p for n, p in inspect.signature(SURFACE[name]).parameters.items() if n != "self"}
    texts = explained(SURFACE[name])
    assert set(texts) == set(parameters)
    silent = [
        n
        for n, p in parameters.items()
        if p.default not in (inspect.Parameter.empty, None) and not re.search(r"[Dd]efault", texts[n])
    ]
    assert [n for n in silent if n != "enabled"] == [], "say what the default is and where it comes from"

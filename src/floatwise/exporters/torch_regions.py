# SPDX-License-Identifier: Apache-2.0
"""The format that a PyTorch script computes in, from its autocast regions, with what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

from floatwise.exporters.settings import Settings, SettingsProblems
from floatwise.exporters.system import Finding
from floatwise.exporters.torch_calls import Autocast, autocasts_of
from floatwise.language import Text
from floatwise.plan.dtypes import SIXTEEN_BIT_FORMATS
from floatwise.plan.problems import Loc, Problem

__all__ = ["Region", "compute_of"]


@dataclass(frozen=True)
class Region:
    """What a script computes in.

    Attributes:
      dtype: The format of products, as a plan names it.
      loc: The call that decides it; empty when none does.
      findings: What is wrong with the autocast regions.
    """

    dtype: str
    loc: Loc = ()
    findings: tuple[Finding, ...] = ()


_DEFAULT = Text(
    "autocast is given no dtype and takes the device's: float16 on CUDA, bfloat16 on CPU. Here: {dtype}.",
    "autocast 未指定 dtype，取设备的默认值：CUDA 为 float16，CPU 为 bfloat16。此处为 {dtype}。",
)
_DEFAULT_DO = Text("Write dtype=torch.{dtype}.", "写明 dtype=torch.{dtype}。")
_DEPRECATED = Text(
    "torch.{device}.amp.autocast is deprecated since torch 2.4 and warns.",
    "torch.{device}.amp.autocast 自 torch 2.4 起已弃用，会发出警告。",
)
_DEPRECATED_DO = Text('Write torch.amp.autocast("{device}", ...).', '改写为 torch.amp.autocast("{device}", ...)。')


def compute_of(settings: Settings, otherwise: str) -> Region:
    """Returns what the script computes in: the format of its first autocast region that is not switched off.

    Args:
      settings: The source.
      otherwise: The format where there is no such region: that of the weights.

    Raises:
      SettingsProblems: The format of the region would only be known when run, or no plan has it.
    """
    regions = [region for region in autocasts_of(settings) if region.enabled is not False]
    if not regions:
        return Region(otherwise)
    first = regions[0]
    if first.dtype not in SIXTEEN_BIT_FORMATS:
        raise SettingsProblems([Problem(first.loc, _why_unknown(first))])
    return Region(first.dtype, first.loc, tuple(_findings(regions)))


def _why_unknown(region: Autocast) -> str:
    if region.dtype is not None:
        return f"got {region.dtype}, which autocast does not compute in: it warns and is off; write torch.bfloat16"
    what = "device, and with it the default format," if region.is_default else "format"
    return (
        f"the {what} of this autocast is known only when the script runs; write dtype=torch.bfloat16 or torch.float16"
    )


def _findings(regions: list[Autocast]) -> list[Finding]:
    found: list[Finding] = []
    first = regions[0]
    if first.is_default and first.dtype:
        texts = (Text(t.en.format(dtype=first.dtype), t.zh.format(dtype=first.dtype)) for t in (_DEFAULT, _DEFAULT_DO))
        found.append(Finding("default-autocast-dtype", first.loc, *texts))
    old = next((region for region in regions if region.deprecated), None)
    if old:
        texts = (
            Text(t.en.format(device=old.device), t.zh.format(device=old.device)) for t in (_DEPRECATED, _DEPRECATED_DO)
        )
        found.append(Finding("deprecated-autocast", old.loc, *texts))
    return found

# SPDX-License-Identifier: Apache-2.0
"""Lightning: Trainer and Fabric in Python, and Trainer in the YAML of LightningCLI."""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.exporters.lightning.given import is_named_lightning, trainer_call
from floatwise.exporters.lightning.knobs import CLOSED, KNOBS, OTHERS
from floatwise.exporters.lightning.losses import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.lightning.read import read
from floatwise.exporters.lightning.strategies import ALIASES, PRECISION_PLUGINS, PRECISIONS, STRATEGIES
from floatwise.exporters.lightning.write import write
from floatwise.exporters.settings import Call, Settings
from floatwise.exporters.system import Option, System
from floatwise.exporters.torch_source import DEVICE_OPTION, SCALER_OPTION
from floatwise.language import Text

__all__ = ["LIGHTNING"]


def _recognises(settings: Settings) -> float:
    if settings.form == "yaml":
        table = settings.get("trainer")
        if not isinstance(table, Mapping):
            return 0.0
        return 0.9 if {"precision", "plugins"} & set(table) else 0.6
    call = trainer_call(settings)
    return _of_call(call, settings) if call else 0.0


def _of_call(call: Call, settings: Settings) -> float:
    """Hugging Face and Composer have a Trainer too: Composer's takes other texts as precision, the former none."""
    value = call.kwargs.get("precision")
    known = isinstance(value, str | int) and (value in PRECISIONS or value in ALIASES)
    if known or is_named_lightning(call) or call.name == "Fabric":
        return 0.95
    if any(c.name in PRECISION_PLUGINS and c.args and isinstance(c.args[0], str) for c in settings.calls):
        return 0.95 if "plugins" in call.kwargs else 0.0
    foreign = isinstance(value, str) and value.startswith(("amp_", "fp32"))
    return 0.6 if "precision" in call.kwargs and not foreign else 0.0


LIGHTNING = System(
    name="lightning",
    title="Lightning",
    summary=Text(
        "precision, plugins and strategy of Trainer or Fabric",
        "Trainer 或 Fabric 的 precision、plugins 与 strategy",
    ),
    distribution="lightning",
    read_version="2.6.6",
    oldest="2.1",
    forms={"python": "lightning_precision.py", "yaml": "lightning.yaml"},
    options=(
        Option(
            name="class",
            choices=("trainer", "fabric"),
            default="trainer",
            meaning=Text("which of Lightning's two drives the loop", "由 Lightning 的哪一个驱动训练循环"),
        ),
        Option(
            name="strategy",
            choices=tuple(STRATEGIES),
            default="auto",
            meaning=Text("how it trains on several devices", "多设备训练方式"),
        ),
        DEVICE_OPTION,
        SCALER_OPTION,
    ),
    knobs=KNOBS,
    closed=CLOSED,
    others=OTHERS,
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=_recognises,
)

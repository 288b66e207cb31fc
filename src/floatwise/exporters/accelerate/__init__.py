# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: the configuration file of `accelerate launch`, or `Accelerator(...)` with its plugins.

`mixed_precision` is autocast around the model's forward with float32 weights, outputs converted back to float32, and
a GradScaler with fp16 on devices that take it. The FSDP plugin brings formats of its own.
"""

from __future__ import annotations

from floatwise.exporters.accelerate.knobs import CLOSED, KNOBS, OTHERS
from floatwise.exporters.accelerate.losses import LOSSES, REFUSALS, REMARKS
from floatwise.exporters.accelerate.read import read, recognises
from floatwise.exporters.accelerate.write import write
from floatwise.exporters.system import Option, System
from floatwise.language import Text

__all__ = ["ACCELERATE"]

ACCELERATE = System(
    name="accelerate",
    title="Accelerate",
    summary=Text(
        "The configuration file of `accelerate launch`, or Accelerator(...) with its plugins",
        "`accelerate launch` 的配置文件，或 Accelerator(...) 及其插件",
    ),
    distribution="accelerate",
    read_version="1.15.0",
    oldest="1.8",
    forms={"yaml": "accelerate_config.yaml", "python": "accelerate_setup.py"},
    options=(
        Option(
            name="fsdp",
            choices=(0, 1, 2),
            default=0,
            meaning=Text(
                "the version of FSDP that shards the model; 0 for none", "对模型分片的 FSDP 版本；0 表示不分片"
            ),
        ),
        Option(
            name="fp8_backend",
            choices=("AO", "TE"),
            default="AO",
            meaning=Text(
                "who does float8: torchao (AO) or TransformerEngine (TE)",
                "由谁实现 float8：torchao（AO）或 TransformerEngine（TE）",
            ),
        ),
    ),
    knobs=KNOBS,
    closed=CLOSED,
    others=OTHERS,
    stand_ins={"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO"},
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

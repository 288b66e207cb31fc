# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed: `ds_config.json`, and what its versions make of it.

Its words are not ours: the tables fp16 and bf16 are "mixed precision" to it, yet they store weights in 16 bits and
keep float32 master weights in the optimizer (our recipes fp16-master and bf16-master); float32 weights under autocast
(our -mixed) are the table torch_autocast.
"""

from __future__ import annotations

from floatwise.exporters.deepspeed.knobs import CLOSED, KNOBS
from floatwise.exporters.deepspeed.losses import LOSSES
from floatwise.exporters.deepspeed.other_keys import OTHER_KEYS
from floatwise.exporters.deepspeed.read import read, recognises
from floatwise.exporters.deepspeed.refusals import REFUSALS, REMARKS
from floatwise.exporters.deepspeed.write import write
from floatwise.exporters.system import Option, System
from floatwise.language import Text

__all__ = ["DEEPSPEED"]

DEEPSPEED = System(
    name="deepspeed",
    title="DeepSpeed",
    summary=Text(
        "ds_config.json with the tables fp16, bf16, torch_autocast and data_types",
        "ds_config.json，含 fp16、bf16、torch_autocast、data_types 各表",
    ),
    distribution="deepspeed",
    read_version="0.19.8",
    # Tags v0.16.0 to v0.19.5 and the sources of 0.19.7 and 0.19.8 were read.
    oldest="0.16.0",
    forms={"json": "ds_config.json"},
    options=(
        Option(
            name="stage",
            choices=(0, 1, 2, 3),
            default=1,
            meaning=Text(
                "the ZeRO stage: 0 shards nothing, 1 optimizer states, 2 gradients as well, 3 weights as well",
                "ZeRO stage：0 不分片，1 分片优化器状态，2 还分片梯度，3 还分片权重",
            ),
        ),
    ),
    knobs=KNOBS,
    closed=CLOSED,
    others=OTHER_KEYS,
    stand_ins={"train_micro_batch_size_per_gpu": 1},
    refusals=REFUSALS,
    losses=LOSSES,
    remarks=REMARKS,
    write=write,
    read=read,
    recognises=recognises,
)

# SPDX-License-Identifier: Apache-2.0
"""The arguments of Lightning's Trainer and Fabric."""

from __future__ import annotations

from collections.abc import Iterator

from floatwise.exporters.grad_scaler import SCALER_NAMES, grad_scaler_knobs
from floatwise.exporters.knob import Knob, knob_table
from floatwise.exporters.lightning.strategies import ALIASES, PRECISIONS
from floatwise.language import Text

__all__ = ["CLOSED", "KNOBS", "OTHERS"]

_SOURCE = "lightning/pytorch/trainer/trainer.py, 2.6.6"
CLOSED = ("trainer", "Trainer", "Fabric")

# lightning/pytorch/trainer/trainer.py, 2.6.6: the parameters of Trainer that have nothing to do with precision.
_TRAINER = (
    "accelerator devices num_nodes logger callbacks fast_dev_run max_epochs min_epochs max_steps min_steps max_time "
    "limit_train_batches limit_val_batches limit_test_batches limit_predict_batches overfit_batches val_check_interval "
    "check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing enable_progress_bar "
    "enable_model_summary accumulate_grad_batches gradient_clip_algorithm deterministic benchmark inference_mode "
    "use_distributed_sampler profiler detect_anomaly barebones sync_batchnorm reload_dataloaders_every_n_epochs "
    "default_root_dir enable_autolog_hparams model_registry"
).split()
# lightning/fabric/fabric.py, 2.6.6.
_FABRIC = "accelerator devices num_nodes callbacks loggers".split()

OTHERS = (
    *(f"{table}.{name}" for table in ("trainer", "Trainer") for name in _TRAINER),
    *(f"Fabric.{name}" for name in _FABRIC),
)


def _rows(table: str) -> Iterator[Knob]:
    yield Knob(
        key=f"{table}.precision",
        kind="any",
        none=True,
        default="32-true",
        choices=(*PRECISIONS, *ALIASES),
        meaning=Text("What is stored and computed in which format.", "以何种格式存储与计算。"),
        source="lightning/fabric/plugins/precision/precision.py, 2.6.6",
    )
    yield Knob(
        key=f"{table}.plugins",
        kind="any",
        meaning=Text(
            "Plugins, of precision too; not together with precision.", "插件，可含精度插件；不能与 precision 同时给出。"
        ),
        source=_SOURCE,
    )
    yield Knob(
        key=f"{table}.strategy",
        kind="any",
        default="auto",
        meaning=Text("How it trains on several devices.", "多设备训练方式。"),
        source=_SOURCE,
    )
    if table != "Fabric":
        yield Knob(
            key=f"{table}.gradient_clip_val",
            kind="float",
            none=True,
            minimum=0,
            meaning=Text("Largest norm or value of gradients.", "梯度范数或数值的上限。"),
            source=_SOURCE,
        )


KNOBS = knob_table(
    *(row for table in CLOSED for row in _rows(table)),
    *(row for name in SCALER_NAMES for row in grad_scaler_knobs(name)),
)

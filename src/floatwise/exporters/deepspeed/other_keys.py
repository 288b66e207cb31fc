# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's keys that have nothing to do with precision, so that a typing error among them is found.

DeepSpeed ignores top-level keys it does not know. The list is what its sources of 0.16.0 to 0.19.8 read from the
top of the file (runtime/config.py and the modules it imports; `__init__.py`), and what Accelerate adds.
"""

from __future__ import annotations

from floatwise.exporters.version import Version
from floatwise.plan.problems import Problem

__all__ = ["OTHER_KEYS", "removed_keys"]

OTHER_KEYS = (
    "activation_checkpointing",
    "aio",
    "autotuning",
    "checkpoint",
    "comet",
    "comms_logger",
    "compile",
    "compression_training",
    "csv_monitor",
    "curriculum_learning",
    "data_efficiency",
    "data_parallel_size",
    "dataloader_drop_last",
    "datastates_ckpt",
    "disable_allgather",
    "disable_python_gc",
    "dump_state",
    "eigenvalue",
    "elasticity",
    "expert_parallel",
    "flops_profiler",
    "gradient_allreduce_op",
    "gradient_predivide_factor",
    "graph_harvesting",
    "hybrid_engine",
    "log_level",
    "managed_gradient_accumulation",
    "memory_breakdown",
    "msamp",
    "nebula",
    "pipeline",
    "prescale_gradients",
    "progressive_layer_drop",
    "quantize_training",
    "sequence_parallel_size",
    "sparse_attention",
    "sparse_gradients",
    "steps_per_print",
    "tensor_parallel",
    "tensorboard",
    "timers",
    "use_data_before_expert_parallelism",
    "vocabulary_size",
    "wall_clock_breakdown",
    "wandb",
    "weight_quantization",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    # JSON has no comments; people write them as keys, which DeepSpeed ignores.
    "_comment",
    "comment",
)

# Since when DeepSpeed refuses a file with the key: `_REMOVED_TOP_LEVEL_CONFIG_KEYS` in runtime/config.py.
_REMOVED = {
    "nebula": "0.19.7",
    "compression_training": "0.19.7",
    "quantize_training": "0.19.7",
    "sparse_attention": "0.19.7",
    "sparse_gradients": "0.19.8",
    "eigenvalue": "0.19.8",
    "elasticity": "0.19.8",
    "graph_harvesting": "0.19.8",
    "curriculum_learning": "0.19.8",
    "progressive_layer_drop": "0.19.8",
    "amp": "0.19.8",
}
_INSTEAD = {
    "amp": 'use "torch_autocast", "bf16" or "fp16"',
    "curriculum_learning": "move it to data_efficiency.data_sampling.curriculum_learning",
    "elasticity": "set the batch sizes instead",
}


def removed_keys(values: object, version: Version) -> list[Problem]:
    """Returns a problem for every top-level key with which this version refuses the file."""
    keys = values if isinstance(values, dict) else {}
    return [
        Problem(
            (key,),
            f"DeepSpeed {version} refuses a file with this key, which was removed in {gone}; "
            + _INSTEAD.get(key, "delete it"),
        )
        for key, gone in _REMOVED.items()
        if key in keys and version >= Version.of(gone)
    ]

# SPDX-License-Identifier: Apache-2.0
"""The fields of TrainingArguments, by the version that dropped them.

Read from transformers/training_args.py of 4.46.3, 4.48.3, 4.51.3, 4.57.3, 5.0.0, 5.12.0 and 5.24.0. `until` is the
first of these without the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CURRENT_FIELDS", "DROPPED_FIELDS", "SEQ2SEQ_FIELDS"]

CURRENT_FIELDS = frozenset(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adam_beta1 adam_beta2 adam_epsilon
    auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed
    dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_tqdm do_eval
    do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start
    eval_steps eval_strategy eval_use_gather_object fp16 fp16_full_eval fsdp fsdp_config full_determinism
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs greater_is_better
    hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip
    include_for_metrics include_num_input_tokens_seen label_names label_smoothing_factor learning_rate
    length_column_name liger_kernel_config load_best_model_at_end local_rank log_level log_level_replica
    log_on_each_node logging_first_step logging_nan_inf_filter logging_steps logging_strategy lr_scheduler_kwargs
    lr_scheduler_type max_grad_norm max_steps metric_for_best_model neftune_noise_alpha num_train_epochs optim
    optim_args optim_target_modules output_dir parallelism_config per_device_eval_batch_size
    per_device_train_batch_size prediction_loss_only project push_to_hub remove_unused_columns report_to
    restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node save_only_model
    save_steps save_strategy save_total_limit seed skip_memory_metrics tf32 torch_compile torch_compile_backend
    torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id trackio_static_space_id
    train_sampling_strategy use_cache use_cpu use_liger_kernel warmup_steps weight_decay
    """.split()
)
"""Fields of 5.24.0."""

SEQ2SEQ_FIELDS = frozenset(
    "sortish_sampler predict_with_generate generation_max_length generation_num_beams generation_config".split()
)
"""What Seq2SeqTrainingArguments has beyond (transformers/training_args_seq2seq.py, 5.24.0)."""

DROPPED_FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "evaluation_strategy": ("4.51.3", "write eval_strategy"),
        "dispatch_batches": ("4.51.3", 'write accelerator_config: {"dispatch_batches": …}'),
        "split_batches": ("4.51.3", 'write accelerator_config: {"split_batches": …}'),
        "use_ipex": ("4.57.3", "delete it"),
        "tp_size": ("4.57.3", "write parallelism_config"),
        "no_cuda": ("5.0.0", "write use_cpu"),
        "half_precision_backend": ("5.0.0", "delete it: PyTorch's autocast is the only backend"),
        "fp16_backend": ("5.0.0", "delete it: PyTorch's autocast is the only backend"),
        "fp16_opt_level": ("5.0.0", "delete it: it was for NVIDIA apex"),
        "overwrite_output_dir": ("5.0.0", "delete it"),
        "per_gpu_train_batch_size": ("5.0.0", "write per_device_train_batch_size"),
        "per_gpu_eval_batch_size": ("5.0.0", "write per_device_eval_batch_size"),
        "save_safetensors": ("5.0.0", "delete it: weights are saved as safetensors"),
        "use_mps_device": ("5.0.0", "delete it: MPS is used where it is there"),
        "jit_mode_eval": ("5.0.0", "delete it"),
        "tpu_num_cores": ("5.0.0", "delete it"),
        "tpu_metrics_debug": ("5.0.0", 'write debug: "tpu_metrics_debug"'),
        "past_index": ("5.0.0", "delete it"),
        "fsdp_min_num_params": ("5.0.0", 'write fsdp_config: {"min_num_params": …}'),
        "fsdp_transformer_layer_cls_to_wrap": ("5.0.0", 'write fsdp_config: {"transformer_layer_cls_to_wrap": …}'),
        "adafactor": ("5.0.0", 'write optim: "adafactor"'),
        "use_legacy_prediction_loop": ("5.0.0", "delete it"),
        "include_inputs_for_metrics": ("5.0.0", 'write include_for_metrics: ["inputs"]'),
        "push_to_hub_model_id": ("5.0.0", "write hub_model_id"),
        "push_to_hub_organization": ("5.0.0", "write hub_model_id"),
        "push_to_hub_token": ("5.0.0", "write hub_token"),
        "mp_parameters": ("5.0.0", "delete it"),
        "torchdynamo": ("5.0.0", "write torch_compile_backend"),
        "ray_scope": ("5.0.0", "delete it"),
        "include_tokens_per_second": ("5.0.0", "write include_num_input_tokens_seen"),
        "group_by_length": ("5.12", 'write train_sampling_strategy: "group_by_length"'),
        "warmup_ratio": ("5.24", "write warmup_steps: it takes a share below 1"),
        "logging_dir": ("5.24", "set the environment variable TENSORBOARD_LOGGING_DIR"),
    }
)
"""Fields that are gone: the first version read without each, and what to write instead."""

# SPDX-License-Identifier: Apache-2.0
"""Names of Accelerate's configuration that have nothing to do with precision, and the words it takes."""

from __future__ import annotations

__all__ = ["CALL_OTHERS", "FILE_OTHERS", "TE_ALGORITHMS", "TE_FORMATS"]

TE_FORMATS = ("HYBRID", "E4M3")
"""Formats of TransformerEngine's DelayedScaling that training takes."""

TE_ALGORITHMS = ("max", "most_recent")
"""accelerate/utils/dataclasses.py `AmaxComputeAlgorithm`, 1.15.0."""

FILE_OTHERS = frozenset(
    """
    compute_environment debug num_processes machine_rank num_machines gpu_ids main_process_ip main_process_port
    rdzv_backend same_network main_training_function enable_cpu_affinity deepspeed_config fsdp_config
    parallelism_config megatron_lm_config mpirun_config tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file
    commands tpu_vm tpu_env dynamo_config dynamo_backend
    fp8_config.use_autocast_during_eval fp8_config.override_linear_precision fp8_config.opt_level
    fp8_config.amax_history_length fp8_config.amax_compute_algorithm
    fp8_config.fp8_use_autocast_during_eval fp8_config.fp8_override_linear_precision fp8_config.fp8_opt_level
    ec2_instance_type iam_role_name image_uri profile region base_job_name pytorch_version transformers_version
    py_version sagemaker_inputs_file sagemaker_metrics_file additional_args
    """.split()
)
"""Fields of ClusterConfig and SageMakerConfig, and of `fp8_config` what holds no format
(accelerate/commands/config/config_args.py and commands/launch.py, 1.15.0)."""

_CALLS = {
    "Accelerator": """
        device_placement split_batches gradient_accumulation_steps dataloader_config deepspeed_plugin fsdp_plugin
        torch_tp_plugin megatron_lm_plugin rng_types log_with project_dir project_config
        gradient_accumulation_plugin step_scheduler_with_optimizer kwargs_handlers dynamo_backend dynamo_plugin
        deepspeed_plugins parallelism_config
        """,
    "FullyShardedDataParallelPlugin": """
        sharding_strategy reshard_after_forward backward_prefetch auto_wrap_policy cpu_offload ignored_modules
        state_dict_type state_dict_config optim_state_dict_config limit_all_gathers use_orig_params param_init_fn
        sync_module_states forward_prefetch activation_checkpointing activation_checkpointing_offload
        cpu_ram_efficient_loading transformer_cls_names_to_wrap min_num_params
        """,
    "AORecipeKwargs": "module_filter_func",
    "TERecipeKwargs": "use_autocast_during_eval override_linear_precision",
    "DistributedDataParallelKwargs": """
        dim broadcast_buffers bucket_cap_mb find_unused_parameters check_reduction gradient_as_bucket_view
        static_graph comm_wrapper comm_state_option
        """,
}

CALL_OTHERS = frozenset(f"{call}.{name}" for call, names in _CALLS.items() for name in names.split())
"""Arguments of the classes (accelerate/accelerator.py and utils/dataclasses.py, 1.15.0)."""

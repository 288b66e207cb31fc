# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's configurations read: the formats they train in, every fault with its line, and what is dangerous."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from floatwise.errors import BadFileError
from floatwise.exporters import get_system, read_settings, recognise
from floatwise.exporters.read import settings_of_text
from floatwise.exporters.system import Reading
from floatwise.exporters.version import Version
from floatwise.plan import Policy, Reductions

DEEPSPEED = get_system("deepspeed")
NEWEST = "0.19.8"
AUTOCAST: dict[str, Any] = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
OFFLOADED: dict[str, Any] = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
FLOAT32_SUMS: dict[str, Any] = {"data_types": {"grad_accum_dtype": "fp32"}}


def read(values: dict[str, Any] | str, version: str = NEWEST, beneath: str = "") -> Reading:
    text = values if isinstance(values, str) else json.dumps(values, indent=1)
    found = settings_of_text(text, "json", "ds_config.json")
    return read_settings(replace(found, beneath=beneath), DEEPSPEED, Version.of(version))


def zero(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}}


# A real file has more than precision in it.
FULL = """{
  "bf16": {"enabled": true},
  "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 32, "hysteresis": 2,
           "min_loss_scale": 1},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.999], "eps": 1e-8, "torch_adam": true}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
  "zero_optimization": {
    "stage": 3, "overlap_comm": true, "reduce_bucket_size": 5e8, "sub_group_size": 1e9,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "nvme", "nvme_path": "/local"},
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true},
  "wandb": {"enabled": true, "project": "p"}, "flops_profiler": {"enabled": false},
  "aio": {"block_size": 1048576}, "checkpoint": {"tag_validation": "Warn"}, "comms_logger": {"enabled": true},
  "gradient_clipping": 1.0, "steps_per_print": 2000, "wall_clock_breakdown": false,
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "_comment": "ours"
}"""


def test_a_users_whole_file_is_read_without_complaint() -> None:
    reading = read(FULL)
    assert reading.findings == ()
    plan = reading.plan
    assert (plan.recipe, plan.weights.master, plan.loss_scale) == ("bf16-master", "float32", None)
    assert plan.policy == Policy(param_dtype="bfloat16", compute_dtype="bfloat16", output_dtype="bfloat16")
    assert plan.reductions == Reductions(reduce_dtype="bfloat16", accumulate_dtype="bfloat16")
    assert recognise(settings_of_text(FULL, "json"), [DEEPSPEED, get_system("fsdp2")]) is DEEPSPEED


@pytest.mark.parametrize("text", ['{"learning_rate": 1e-3, "fp16": true, "bf16": false}', "{}"])
def test_other_files_are_not_recognised(text: str) -> None:
    assert DEEPSPEED.recognises(settings_of_text(text, "json")) == 0


@pytest.mark.parametrize(
    ("values", "version", "fields"),
    [
        (
            {"bfloat16": {"enabled": True}, "bf16": None, **zero(1)},
            NEWEST,
            {"param": "bfloat16", "reduce": "bfloat16", "sum": "bfloat16", "buffer": "float32"},
        ),
        ({"bf16": {"enabled": True}, **zero(1)}, "0.19.1", {"buffer": "bfloat16"}),
        (
            {
                "fp16": {"enabled": True},
                "communication_data_type": "bf16",
                "data_types": {"grad_accum_dtype": "float32", "buffer_dtype": "half"},
                **zero(2),
            },
            NEWEST,
            {"param": "float16", "reduce": "bfloat16", "sum": "float32", "buffer": "float16"},
        ),
        (
            {**AUTOCAST, **zero(0)},
            NEWEST,
            {"param": "float32", "compute": "bfloat16", "reduce": "float32", "sum": "float32"},
        ),
        ({**AUTOCAST, **zero(1)}, NEWEST, {"reduce": "bfloat16", "sum": "float32"}),
        ({**AUTOCAST, "data_types": {"grad_accum_dtype": "bf16"}, **zero(2)}, NEWEST, {"sum": "float32"}),
        (
            {"zero_optimization": True, "data_types": {"grad_accum_dtype": "bf16"}},
            NEWEST,
            {"compute": "float32", "sum": "bfloat16"},
        ),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, "0.18.4", {"sum": "float32"}),
    ],
)
def test_formats_are_read_as_deepspeed_takes_them(values: dict[str, Any], version: str, fields: dict[str, str]) -> None:
    plan = read(values, version).plan
    got = {
        "param": plan.policy.param_dtype,
        "compute": plan.policy.compute_dtype,
        "reduce": plan.reductions.reduce_dtype,
        "sum": plan.reductions.accumulate_dtype,
        "buffer": plan.reductions.buffer_dtype,
    }
    assert {key: got[key] for key in fields} == fields


def test_the_loss_scale_is_read_with_deepspeeds_defaults() -> None:
    scale = read({"fp16": {"enabled": True}, **zero(1)}).plan.loss_scale
    assert scale is not None
    assert (scale.initial_scale, scale.growth_interval, scale.hysteresis, scale.floor) == (65536, 1000, 2, 1)
    assert (scale.mode, scale.growth, scale.ceiling) == ("dynamic", "fixed", 2.0**127)


FAULTS: list[tuple[str, str]] = [
    ('{"fp16": {"enabled": true},\n"bf16": {"enabled": true}}', "2: bf16.enabled: fp16 and bf16 are both enabled"),
    ('{"fp16":\n {"enabled": true},\n"bfloat16": {"enabled": true}}', "3: bfloat16.enabled: fp16 and bf16 are both"),
    ('{"fp16": {"enabled":\n "auto"}}', '2: fp16.enabled: got "auto" in a file that DeepSpeed reads by itself'),
    ('{"gradient_clipping": "auto"}', '1: gradient_clipping: got "auto" in a file that DeepSpeed reads by itself'),
    ('{"optimizer": {"params": {\n"lr": "auto"}}}', '2: optimizer.params.lr: got "auto"'),
    ('{"fp16": {\n"enabled": "true"}}', '2: fp16.enabled: got "true", expected true or false\n    why: in quotes'),
    ('{\n"fp61": {"enabled": true}}', "2: fp61: DeepSpeed knows no such key; did you mean 'fp16'?"),
    ('{\n"bfoat16": {"enabled": true}}', "2: bfoat16: DeepSpeed knows no such key; did you mean 'bfloat16' or 'bf16'?"),
    ('{"bf16": {"enable": true}}', "1: bf16.enable: DeepSpeed knows no such key; did you mean 'enabled'?"),
    ('{"bf16": {"loss_scale": 0}}', "1: bf16.loss_scale: DeepSpeed knows no such key; known here: bf16_master"),
    ('{"fp16": {"opt_level": "O2"}}', "1: fp16.opt_level: DeepSpeed knows no such key"),
    ('{"torch_autocast": {"dtpye": "bf16"}}', "1: torch_autocast.dtpye: DeepSpeed knows no such key; did you mean"),
    ('{"data_types": {"grad_acum_dtype": "fp32"}}', "1: data_types.grad_acum_dtype: DeepSpeed knows no such key"),
    ('{"data_types": {"grad_accum_dtype": "fp64"}}', '1: data_types.grad_accum_dtype: got "fp64", expected "fp32"'),
    ('{"communication_data_type": "bfloat16"}', '1: communication_data_type: got "bfloat16", expected "fp16" or'),
    ('{"torch_autocast": {"dtype": "fp8"}}', '1: torch_autocast.dtype: got "fp8", expected "fp16"'),
    ('{"fp16": {"hysteresis": 0}}', "1: fp16.hysteresis: got 0, expected a whole number from 1"),
    ('{"fp16": {"initial_scale_power": 40}}', "got 40, expected a whole number from 0 to 32\n    why: DeepSpeed takes"),
    ('{"fp16": {"initial_scale_power": -1}}', "got -1, expected a whole number from 0 to 32"),
    ('{"fp16": {"min_loss_scale": 0.25}}', "1: fp16.min_loss_scale: got 0.25, expected a whole number from 1"),
    ('{"fp16": {"loss_scale": -1}}', "1: fp16.loss_scale: got -1, expected a number from 0"),
    ('{"fp16": {"loss_scale_window": 0}}', "1: fp16.loss_scale_window: got 0, expected a whole number from 1"),
    (
        '{"fp16": {"enabled": true, "initial_scale_power": 2,\n"min_loss_scale": 8}}',
        "2: fp16.min_loss_scale: got 8, above the first scale 2^2 = 4",
    ),
    ('{"fp16": true}', '1: fp16: got true, expected a table such as {"enabled": true}'),
    ('{"data_types": "fp32"}', '1: data_types: got "fp32", expected a table such as {"grad_accum_dtype": "fp32"}'),
    ('{"zero_optimization": 2}', '1: zero_optimization: got 2, expected a table such as {"stage": 1}'),
    ('{"zero_optimization": {"stage": 4}}', "1: zero_optimization.stage: got 4, expected a whole number from 0 to 3"),
    ('{"amp": {"enabled": true}}', "1: amp.enabled: DeepSpeed 0.19.8 does not have this key; it is there before"),
    ('{"amp": {"keep_batchnorm_fp32": true}}', "1: amp: DeepSpeed 0.19.8 refuses a file with this key"),
    ('{"elasticity": {}}', "1: elasticity: DeepSpeed 0.19.8 refuses a file with this key, which was removed in 0.19.8"),
    ('{"fp32_allreduce": true}', "1: fp32_allreduce: DeepSpeed 0.19.8 does not have this key"),
    (
        '{"bf16": {"enabled": true},\n"data_types": {"grad_accum_dtype": "fp32"}}',
        "2: data_types.grad_accum_dtype: got float32 for weights in bfloat16 without ZeRO",
    ),
    (
        '{"bf16": {"enabled": true},\n"data_types": {"param_dtype": "fp16"}}',
        "2: data_types.param_dtype: got float16 while weights are bfloat16",
    ),
    ('{"fp16": {"fp16_master_weights_and_grads": true}}', "DeepSpeed refuses it without ZeRO"),
    (
        '{"zero_optimization": {"stage": 1}, "bf16": {\n"bf16_master_weights_and_grads": true}}',
        "2: bf16.bf16_master_weights_and_grads: DeepSpeed refuses it unless DeepSpeedCPUAdam keeps",
    ),
    (
        '{"zero_optimization": {"stage": 1}, "fp16": {\n"fp16_master_weights_and_grads": true}}',
        "2: fp16.fp16_master_weights_and_grads: DeepSpeed refuses it unless DeepSpeedCPUAdam keeps",
    ),
    (
        '{"zero_optimization": {"stage": 1}, "bf16": {\n"bf16_optimizer_states": true}}',
        "2: bf16.bf16_optimizer_states: DeepSpeed refuses it without bf16_master_weights_and_grads",
    ),
    ('{"data_types": {"keep_in_fp32_modules": "norm"}}', 'got "norm", expected "auto" or a list of name patterns'),
    ('{"fp16": {"enabled": true, "loss_scale": 1e-44}, "zero_optimization": {"stage": 1}}', "1: fp16: got 1e-44"),
]


@pytest.mark.parametrize(("text", "says"), FAULTS)
def test_faults_are_reported_with_their_line(text: str, says: str) -> None:
    with pytest.raises(BadFileError) as caught:
        read(text)
    assert says in str(caught.value)
    assert str(caught.value).startswith("ds_config.json:")


@pytest.mark.parametrize(
    ("text", "version", "says"),
    [
        (json.dumps(AUTOCAST), "0.17.1", "it is there since 0.17.2"),
        ('{"bf16": {"check_grad_overflow": true}}', "0.17.0", "it is there since 0.17.1: delete it"),
        ('{"bf16": {"bf16_optimizer_states": true}}', "0.18.2", "it is there since 0.18.3"),
        ('{"data_types": {"buffer_dtype": "bf16"}}', "0.19.1", "it is there since 0.19.2"),
        ('{"data_types": {"keep_in_fp32_modules": []}}', "0.19.7", "it is there since 0.19.8"),
        ('{"seq_parallel_communication_data_type": "fp32"}', "0.16.4", 'write "seq_parallel_comm_data_type"'),
        ('{"seq_parallel_comm_data_type": "fp32"}', "0.16.5", 'write "seq_parallel_communication_data_type"'),
        ('{"amp": {"enabled": true}}', "0.19.7", "Apex AMP decides the formats by rules of its own"),
        ('{"nebula": {}}', "0.19.7", "removed in 0.19.7"),
        ('{"bf16": {"enabled": true}}', "0.17.5", "trains bf16 without ZeRO only with float32 sums"),
    ],
)
def test_keys_are_known_by_version(text: str, version: str, says: str) -> None:
    with pytest.raises(BadFileError, match=says):
        read(text, version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('{"nebula": {}}', "0.19.6"),
        ('{"elasticity": {}}', "0.19.7"),
        ('{"amp": {"enabled": false}}', "0.19.7"),
        ('{"bf16": {"enabled": true}}', "0.17.6"),
        ('{"data_types": {"keep_in_fp32_modules": ["bias"]}}', NEWEST),
    ],
)
def test_what_a_version_has_is_taken(text: str, version: str) -> None:
    assert read(text, version)


@pytest.mark.parametrize(
    ("values", "version", "codes"),
    [
        ({"fp16": {"enabled": True}}, NEWEST, ["loss-not-scaled"]),
        ({"fp16": {"enabled": True}}, "0.18.2", []),
        (BF16, "0.18.4", ["gradients-divided"]),
        (BF16, "0.18.6", []),
        (
            {"torch_autocast": {"enabled": True, "dtype": "fp16"}, **zero(1)},
            NEWEST,
            ["scale-never-falls", "clips-scaled-gradients"],
        ),
        ({"torch_autocast": {"enabled": True, "dtype": "fp16"}, **zero(1)}, "0.19.2", ["scale-never-falls"]),
        (
            {"torch_autocast": {"enabled": True, "dtype": "fp16"}, "gradient_clipping": 0, **zero(2)},
            NEWEST,
            ["scale-never-falls"],
        ),
        ({"torch_autocast": {"enabled": True, "dtype": "fp16"}}, NEWEST, []),
        ({"torch_autocast": {"enabled": True}}, NEWEST, ["autocast-without-dtype", "no-loss-scale"]),
        ({**AUTOCAST, **BF16, **zero(1)}, NEWEST, ["autocast-moot"]),
        ({**AUTOCAST, "communication_data_type": "fp32", **zero(1)}, NEWEST, ["autocast-ignores-communication"]),
        ({**AUTOCAST, "communication_data_type": "fp32"}, NEWEST, []),
        ({"fp16": {"enabled": True, "loss_scale": 128}, **zero(1)}, NEWEST, ["static-loss-scale"]),
        ({"fp16": {"enabled": True, "initial_scale_power": 32}, **zero(1)}, NEWEST, ["high-first-scale"]),
        ({"bf16": {"enabled": True, "check_grad_overflow": False}, **zero(2)}, NEWEST, ["overflow-unchecked"]),
        ({"bf16": {"enabled": True, "check_grad_overflow": False}, **zero(3)}, NEWEST, []),
        ({**BF16, **zero(1)}, "0.19.2", ["overflow-unchecked"]),
        ({**BF16, "gradient_accumulation_steps": 8, **zero(1)}, NEWEST, ["sums-in-16-bit"]),
        ({**BF16, "gradient_accumulation_steps": 8, "data_types": {"grad_accum_dtype": "fp32"}, **zero(1)}, NEWEST, []),
        ({**BF16, "communication_data_type": "fp16", **zero(1)}, NEWEST, ["narrow-communication", "no-loss-scale"]),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}, **OFFLOADED}, NEWEST, ["pure-16-bit"]),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}, **FLOAT32_SUMS, **zero(1)},
            NEWEST,
            [],
        ),
        ({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}, **OFFLOADED}, NEWEST, ["pure-16-bit"]),
        (
            {
                "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
                **zero(1),
            },
            NEWEST,
            ["optimizer-states-in-16-bit", "pure-16-bit"],
        ),
        ({**BF16, "bfloat16": {"enabled": True}}, NEWEST, ["second-bf16-table"]),
    ],
)
def test_findings(values: dict[str, Any], version: str, codes: list[str]) -> None:
    findings = read(values, version).findings
    assert [finding.code for finding in findings] == codes
    assert all(text for finding in findings for text in (finding.what.zh, finding.do.en, finding.do.zh))


@pytest.mark.parametrize("beneath", ["Trainer", "Accelerate"])
def test_auto_is_taken_where_another_system_fills_it_in(beneath: str) -> None:
    tables = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "optimizer": {"params": {"lr": "auto"}}}
    values = {**tables, "gradient_clipping": "auto", "train_batch_size": "auto"}
    assert [finding.code for finding in read(values, beneath=beneath).findings] == ["filled-in-later"]
    with pytest.raises(BadFileError, match=f'fp16.auto_cast: got "auto", which {beneath} does not fill in'):
        read('{"fp16": {"enabled": true, "auto_cast": "auto"}}', beneath=beneath)

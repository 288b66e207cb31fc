# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: what is written, what is read, and what is refused, with its line."""

from __future__ import annotations

from typing import Any

import pytest

from floatwise.errors import BadFileError, PlanError
from floatwise.exporters import export_plan, get_system, recognise
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.system import Reading
from floatwise.exporters.systems import SYSTEMS
from floatwise.exporters.version import Version
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, Reductions, recipe

TRAINER = get_system("transformers")


def read(text: str, form: str = "json", version: str = "5.24.0") -> Reading:
    return read_settings(settings_of_text(text, form, "args"), TRAINER, Version.of(version))


def export(plan: Plan, **arguments: Any) -> Any:
    return export_plan(plan, TRAINER, version=arguments.pop("version", "5.24.0"), **arguments)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fp32", '{\n  "fp16": false,\n  "bf16": false,\n  "tf32": false\n}\n'),
        ("tf32", '{\n  "fp16": false,\n  "bf16": false,\n  "tf32": true\n}\n'),
        ("bf16-mixed", '{\n  "fp16": false,\n  "bf16": true,\n  "tf32": false\n}\n'),
        ("bf16-master", '{\n  "fp16": false,\n  "bf16": true,\n  "tf32": false\n}\n'),
        ("fp16-mixed", '{\n  "fp16": true,\n  "bf16": false,\n  "tf32": false\n}\n'),
    ],
)
def test_each_recipe_is_three_arguments(name: str, text: str) -> None:
    assert export(recipe(name)).text == text


def test_a_loss_scale_of_the_plans_own_is_a_trainer_subclass_in_python_and_a_loss_in_json() -> None:
    plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=1024.0, growth_interval=100))
    source = export(plan, form="python")
    assert source.text.startswith(
        "from accelerate.utils import GradScalerKwargs\n"
        "from transformers import Trainer, TrainingArguments\n\n"
        "TRAINING_ARGUMENTS = TrainingArguments(\n    fp16=True,\n    bf16=False,\n    tf32=False,\n)\n"
        "LOSS_SCALE = GradScalerKwargs(\n    init_scale=1024.0,\n"
    )
    assert "class PlannedTrainer(Trainer):" in source.text
    assert source.reading.plan.loss_scale is not None
    assert source.reading.plan.loss_scale.initial_scale == 1024.0
    lost = {path for note in export(plan).notes for path in note.fields}
    assert {"loss_scale.initial_scale", "loss_scale.growth_interval"} <= lost
    assert "loss_scale.initial_scale" not in {path for note in source.notes for path in note.fields}


def test_the_default_loss_scale_needs_no_subclass() -> None:
    assert export(recipe("fp16-mixed"), form="python").text == (
        "from transformers import TrainingArguments\n\n"
        "TRAINING_ARGUMENTS = TrainingArguments(\n    fp16=True,\n    bf16=False,\n    tf32=False,\n)\n"
    )


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (recipe("fp8-tensorwise"), "TrainingArguments has no float8"),
        (
            recipe("bf16-mixed", reductions=Reductions(reduce_dtype="float16"), loss_scale=LossScale()),
            "scales the loss with fp16 only",
        ),
    ],
)
def test_plans_that_trainer_cannot_train_are_refused(plan: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        export(plan)


def test_weights_in_16_bits_islands_and_outputs_are_said_to_be_lost() -> None:
    island = ModulePolicy(module="head", policy=Policy(compute_dtype="float32"))
    plan = recipe(
        "bf16-master",
        modules=(island,),
        policy=Policy(param_dtype="bfloat16", compute_dtype="bfloat16", output_dtype="bfloat16"),
    )
    exported = export(plan)
    assert exported.reading.plan == recipe("bf16-mixed")
    lost = [path for note in exported.notes for path in note.fields]
    assert {"recipe", "weights.master", "policy.param_dtype", "policy.output_dtype"} <= set(lost)


@pytest.mark.parametrize(
    ("text", "form", "version", "line"),
    [
        ('{\n"fp16": true,\n"bf16": true}', "json", "5.24.0", "args:3: bf16: got fp16 and bf16 both true"),
        (
            '{\n"fp16_full_eval": true,\n"bf16_full_eval": true}',
            "json",
            "5.24.0",
            "args:3: bf16_full_eval: got fp16_full_eval and bf16_full_eval both true",
        ),
        ('{\n"fp16": "true"}', "json", "5.24.0", 'args:2: fp16: got "true", expected true or false'),
        ('{\n"fp16": "false"}', "json", "4.57.3", 'a text is true in Python, even "false"'),
        ('{\n"output_dir": "o",\n"fp_16": true}', "json", "5.24.0", "did you mean 'fp16'?"),
        ('{\n"learning_rat": 1}', "json", "5.24.0", "args:2: learning_rat: TrainingArguments has no such argument"),
        (
            "TrainingArguments(\n    fp16=True,\n    bf_16=True,\n)",
            "python",
            "5.24.0",
            "args:3: TrainingArguments.bf_16: Hugging Face Trainer knows no such key; did you mean 'bf16'",
        ),
        (
            '{\n"half_precision_backend": "auto"}',
            "json",
            "5.0.0",
            "args:2: half_precision_backend: Hugging Face Trainer 5.0.0 does not have this key; it is there before "
            "5.0.0 only",
        ),
        ('{"no_cuda": true}', "json", "5.24.0", "write use_cpu"),
        ('{"fp16_opt_level": "O1"}', "json", "5.24.0", "before 5.0.0 only"),
        ('{"fp16_backend": "apex"}', "json", "5.24.0", "before 5.0.0 only"),
        ('{"evaluation_strategy": "steps"}', "json", "4.57.3", "write eval_strategy"),
        ('{"half_precision_backend": "apx"}', "json", "4.57.3", "did you mean 'apex'?"),
        ("x = 1\n", "python", "5.24.0", "args:1: there is no call of TrainingArguments"),
    ],
)
def test_bad_arguments_are_named_with_their_line(text: str, form: str, version: str, line: str) -> None:
    with pytest.raises(BadFileError) as error:
        read(text, form, version)
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("text", "version"),
    [('{"half_precision_backend": "auto", "no_cuda": false}', "4.57.3"), ('{"evaluation_strategy": "no"}', "4.46.3")],
)
def test_arguments_of_version_4_are_read_there(text: str, version: str) -> None:
    assert read(text, version=version).plan == recipe("fp32")


@pytest.mark.parametrize(
    ("text", "compute", "codes"),
    [
        ('{"fp16": true, "use_cpu": true}', "float32", ["float16-on-cpu"]),
        ('{"bf16": true, "use_cpu": true}', "bfloat16", []),
        ('{"bf16": true, "bf16_full_eval": true}', "bfloat16", ["full-eval-casts-weights"]),
        ('{"bf16": true, "model_name_or_path": "m"}', "bfloat16", ["not-of-training-arguments"]),
        ('{"bf16": true, "max_train_samples": 5}', "bfloat16", ["not-of-training-arguments"]),
    ],
)
def test_accepted_and_dangerous_is_found(text: str, compute: str, codes: list[str]) -> None:
    reading = read(text)
    assert reading.plan.compute_dtype == compute
    assert [finding.code for finding in reading.findings] == codes


def test_a_value_known_only_when_run_is_said() -> None:
    reading = read("TrainingArguments(bf16=args.bf16)", "python")
    assert [finding.code for finding in reading.findings] == ["known-only-when-run"]


def test_apex_is_found_in_version_4() -> None:
    assert [f.code for f in read('{"fp16": true, "half_precision_backend": "apex"}', version="4.57.3").findings] == [
        "apex"
    ]


@pytest.mark.parametrize(
    ("text", "matmul"),
    [
        ("{}", "ieee"),
        ('{"tf32": true}', "tf32"),
        ('{"torch_compile": true}', "tf32"),
        ('{"torch_compile": true, "tf32": false}', "ieee"),
        ('{"torch_compile": true, "fp16": true}', "ieee"),
        ('{"torch_compile_backend": "inductor"}', "tf32"),
    ],
)
def test_tf32_is_on_as_the_arguments_have_it(text: str, matmul: str) -> None:
    assert read(text).plan.float32_matmul == matmul


@pytest.mark.parametrize(
    ("text", "version", "output", "buffers"),
    [
        ('{"bf16": true, "fsdp": "full_shard"}', "5.24.0", "bfloat16", "float32"),
        ('{"bf16": true, "fsdp": "full_shard"}', "4.57.3", "float32", "bfloat16"),
        ('{"bf16": true, "fsdp": "full_shard", "fsdp_config": {"version": 1}}', "5.24.0", "float32", "bfloat16"),
    ],
)
def test_fsdp_sums_gradients_in_16_bits(text: str, version: str, output: str, buffers: str) -> None:
    plan = read(text, version=version).plan
    assert plan.policy.output_dtype == output
    assert plan.reductions == Reductions(reduce_dtype="bfloat16", accumulate_dtype="bfloat16", buffer_dtype=buffers)


def test_deepspeed_stores_weights_in_16_bits() -> None:
    plan = read('{"fp16": true, "deepspeed": {"fp16": {"enabled": "auto"}}}').plan
    assert (plan.policy.param_dtype, plan.weights.master) == ("float16", "float32")
    assert plan.loss_scale is not None
    assert plan.loss_scale.hysteresis == 2


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('{"output_dir": "o", "bf16": true}', "json"),
        ('{"per_device_train_batch_size": 4, "learning_rate": 1e-4, "fp16": true}', "json"),
        ("output_dir: out\nbf16: true\n", "yaml"),
        ("args = Seq2SeqTrainingArguments(output_dir='o')", "python"),
    ],
)
def test_arguments_are_recognised(text: str, form: str) -> None:
    assert recognise(settings_of_text(text, form), SYSTEMS.values()) is TRAINER


def test_remarks_say_what_the_host_does() -> None:
    said = [note.what.en for note in export(recipe("fp16-mixed")).notes]
    assert any("everything trains in float32" in text for text in said)
    assert any("dtype=torch.float32" in text for text in said)
    older = [note.what.en for note in export(recipe("fp16-mixed"), version="4.57.3").notes]
    assert not any("dtype=torch.float32" in text for text in older)

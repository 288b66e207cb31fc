# SPDX-License-Identifier: Apache-2.0
"""Several configurations of one training: what they mean together, and where they contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floatwise.errors import BadFileError, UnknownNameError
from floatwise.exporters import SYSTEMS
from floatwise.exporters.system import Finding
from floatwise.exporters.together import check_together, load_together
from floatwise.plan import recipe

ZERO = {"zero_optimization": {"stage": 1}}
VERSIONS = {"transformers": "5.24.0", "accelerate": "1.15.0", "deepspeed": "0.19.8"}
LAUNCH = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def put(**files: Any) -> list[Path]:
        paths = []
        for stem, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=0)
            suffix = ".json" if not isinstance(content, str) else ".py" if "(" in content else ".yaml"
            path = tmp_path / f"{stem}{suffix}"
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        return paths

    return put


def load(paths: list[Path], **arguments: Any) -> Any:
    return load_together(paths, SYSTEMS, VERSIONS, **arguments)


def failing(paths: list[Path]) -> str:
    with pytest.raises(BadFileError) as error:
        load(paths)
    return str(error.value)


def test_the_file_that_is_named_is_followed_with_auto_filled_in(write: Any) -> None:
    args, _ = write(
        args={"output_dir": "o", "bf16": True, "deepspeed": "ds.json"},
        ds={**ZERO, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}},
    )
    parts = load([args])
    assert [system.name for system, _, _ in parts] == ["transformers", "deepspeed"]
    assert parts[1][1].beneath == "Trainer"
    plan = parts[-1][2].plan
    assert (plan.recipe, plan.policy.param_dtype, plan.weights.master) == ("bf16-master", "bfloat16", "float32")


def test_a_file_given_beside_is_the_same_and_not_read_twice(write: Any) -> None:
    ds, args = write(
        ds={**ZERO, "bf16": {"enabled": "auto"}}, args={"output_dir": "o", "bf16": True, "deepspeed": "ds.json"}
    )
    for paths in ([ds, args], [args, ds]):
        assert [system.name for system, _, _ in load(paths)] == ["transformers", "deepspeed"]


def test_a_file_given_beside_is_read_by_trainer_without_being_named(write: Any) -> None:
    paths = write(args={"output_dir": "o", "fp16": True}, ds={**ZERO, "fp16": {"enabled": "auto"}})
    assert load(paths)[-1][2].plan.compute_dtype == "float16"


def test_auto_in_a_file_by_itself_is_a_fault(write: Any) -> None:
    assert 'ds.json:6: fp16.enabled: got "auto" in a file that DeepSpeed reads by itself' in failing(
        write(ds={**ZERO, "fp16": {"enabled": "auto"}})
    )


def test_a_missing_table_is_added_as_accelerate_does(write: Any) -> None:
    paths = write(args={"output_dir": "o", "bf16": True, "deepspeed": "ds.json"}, ds=ZERO)
    reading = load(paths[:1])[-1][2]
    assert reading.plan.policy.param_dtype == "bfloat16"
    assert [finding.code for finding in reading.findings] == ["no-precision-table"]


def test_a_table_in_the_arguments_is_read_with_the_lines_of_that_file(write: Any) -> None:
    paths = write(args={"output_dir": "o", "bf16": True, "deepspeed": {**ZERO, "fp16": {"enabled": True}}})
    said = failing(paths)
    assert "args.json:9: fp16.enabled: got true while TrainingArguments" in said


@pytest.mark.parametrize(
    ("args", "tables", "line"),
    [
        ({"fp16": False}, {"fp16": {"enabled": True}}, "ds.json:6: fp16.enabled: got true while TrainingArguments"),
        ({"bf16": True}, {"bf16": {"enabled": False}}, "ds.json:6: bf16.enabled: got false while TrainingArguments"),
        ({"bf16_full_eval": True}, {"bf16": {"enabled": False}}, "bf16 or bf16_full_eval = true"),
    ],
)
def test_trainer_and_deepspeed_must_say_the_same(
    write: Any, args: dict[str, Any], tables: dict[str, Any], line: str
) -> None:
    paths = write(args={"output_dir": "o", **args, "deepspeed": "ds.json"}, ds={**ZERO, **tables})
    said = failing(paths[:1])
    assert line in said
    assert "Please correct the following DeepSpeed config values" in said


@pytest.mark.parametrize(
    ("args", "tables", "compute"),
    [
        ({"fp16": True}, {"fp16": {"enabled": True}}, "float16"),
        ({"fp16": True}, {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, "float16"),
        ({"bf16_full_eval": True}, {"bf16": {"enabled": True}}, "bfloat16"),
        ({}, {}, "float32"),
    ],
)
def test_what_agrees_is_read(write: Any, args: dict[str, Any], tables: dict[str, Any], compute: str) -> None:
    parts = load(write(args={"output_dir": "o", **args, "deepspeed": "ds.json"}, ds={**ZERO, **tables})[:1])
    assert [system.name for system, _, _ in parts] == ["transformers", "deepspeed"]
    assert parts[-1][2].plan.compute_dtype == compute


def test_accelerates_file_may_not_say_what_a_deepspeed_file_says(write: Any) -> None:
    acc, _ = write(acc=LAUNCH + "  zero_stage: 2\nmixed_precision: bf16\n", ds={**ZERO, "bf16": {"enabled": True}})
    said = failing([acc])
    assert "acc.yaml:4: deepspeed_config.zero_stage: stands beside deepspeed_config_file" in said
    assert "acc.yaml:5: mixed_precision: stands beside deepspeed_config_file" in said


def test_auto_under_accelerate_alone_is_false(write: Any) -> None:
    acc, _ = write(acc=LAUNCH, ds={**ZERO, "bf16": {"enabled": "auto"}})
    parts = load([acc])
    assert parts[-1][2].plan.compute_dtype == "float32"
    assert [finding.code for finding in parts[-1][2].findings] == ["auto-is-false"]


def test_accelerates_file_without_deepspeed_does_not_read_its_table(write: Any) -> None:
    parts = load(write(acc="distributed_type: MULTI_GPU\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 2\n"))
    assert [finding.code for finding in parts[0][2].findings] == ["idle-deepspeed-config"]


def test_python_of_accelerate_and_a_deepspeed_file_must_say_the_same(write: Any) -> None:
    source = (
        "Accelerator(\n    mixed_precision='bf16',\n    deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='ds.json'))\n"
    )
    acc, _ = write(acc=source, ds={**ZERO, "fp16": {"enabled": True}})
    said = failing([acc])
    assert "ds.json:6: fp16.enabled: got true while mixed_precision is bf16" in said
    assert "acc.py:2" in said


def test_trainers_arguments_win_over_the_file_of_accelerate(write: Any) -> None:
    paths = write(
        args={"output_dir": "o", "bf16": True},
        acc="distributed_type: 'NO'\nmixed_precision: fp16\n",
    )
    parts = load(paths)
    assert [system.name for system, _, _ in parts] == ["accelerate", "transformers"]
    (finding,) = parts[0][2].findings
    assert (finding.code, finding.loc) == ("precision-overridden", ("mixed_precision",))
    assert "fp16 here and bf16 in TrainingArguments" in finding.what.en
    assert parts[-1][2].plan == recipe("bf16-mixed")


def test_without_arguments_of_its_own_trainer_trains_as_the_file_of_accelerate_says(write: Any) -> None:
    paths = write(
        args={"output_dir": "o"}, acc="distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: AO\n"
    )
    assert load(paths)[-1][2].plan == recipe("fp8-tensorwise")


def test_two_deepspeed_files_are_found(write: Any) -> None:
    acc, args, *_ = write(
        acc=LAUNCH, args={"output_dir": "o", "bf16": True, "deepspeed": "other.json"}, ds=ZERO, other=ZERO
    )
    parts = load([acc, args])
    assert [finding.code for finding in parts[0][2].findings] == ["two-deepspeed-files"]
    assert parts[-1][1].source.endswith("other.json")


def test_every_fault_of_every_file_is_listed_at_once(write: Any) -> None:
    said = failing(
        write(
            args={"output_dir": "o", "fp16": "true", "deepspeed": "missing.json"},
            acc="distributed_type: 'NO'\nmixed_precison: bf16\n",
        )
    )
    assert "args.json:3: fp16" in said
    assert "args.json:4: deepspeed: names the DeepSpeed file missing.json, which is not in" in said
    assert "acc.yaml:2: mixed_precison" in said


def test_a_deepspeed_file_without_zero_is_refused(write: Any) -> None:
    paths = write(args={"output_dir": "o", "deepspeed": "ds.json"}, ds={"train_batch_size": 4})
    assert "ds.json:1: has no zero_optimization" in failing(paths[:1])


def test_the_system_of_the_first_file_can_be_named(write: Any) -> None:
    paths = write(args={"output_dir": "o"})
    assert load(paths, from_system="transformers")[0][0].name == "transformers"
    with pytest.raises(UnknownNameError):
        load(paths, from_system="trainer")


def test_parts_that_are_read_can_be_checked_again(write: Any) -> None:
    paths = write(args={"output_dir": "o", "bf16": True}, acc="distributed_type: 'NO'\nmixed_precision: fp16\n")
    (conflict,) = check_together(load(paths))
    assert isinstance(conflict.what, Finding)
    assert conflict.settings.source.endswith("acc.yaml")

# SPDX-License-Identifier: Apache-2.0
"""`floatwise export`, `import` and `diff`: what is printed where, what is written, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from floatwise.exporters import SYSTEMS
from floatwise.plan import load_plan, recipe, save_plan


def test_the_configuration_goes_to_stdout_and_what_is_lost_to_stderr(floatwise: Call) -> None:
    done = floatwise("export", "--to", "fsdp2", "--recipe", "fp16-mixed")
    assert done.code == 0
    compile(done.out, "exported", "exec")
    assert "param_dtype=torch.float16" in done.out
    assert "loss_scale.floor" in done.err
    assert "loss_scale.floor" not in done.out


def test_the_plan_here_is_taken_when_none_is_named(floatwise: Call, here: Path) -> None:
    save_plan(recipe("fp16-mixed"), here / "precision.toml")
    assert "param_dtype=torch.float16" in floatwise("export", "--to", "fsdp2").out


def test_json_holds_text_and_notes(floatwise: Call) -> None:
    values = floatwise("export", "--to", "fsdp2", "--recipe", "bf16-master", "--json").object
    assert values["system"] == "fsdp2"
    assert values["written"] is None
    changing = [note for note in values["notes"] if note["changes_training"]]
    assert [note["fields"] for note in changing] == [["recipe", "policy.param_dtype", "weights.master"]]


def test_what_was_written_is_read_back(floatwise: Call, here: Path) -> None:
    done = floatwise("export", "--to", "deepspeed", "--recipe", "bf16-master", "--stage", "2", "-o", "ds.json")
    assert done.code == 0
    assert json.loads((here / "ds.json").read_text())["zero_optimization"]["stage"] == 2
    read = floatwise("import", "ds.json", "-o", "read.toml")
    assert read.code == 0
    assert load_plan(here / "read.toml").recipe == "bf16-master"
    assert floatwise("diff", "ds.json", "read.toml").code == 0
    differs = floatwise("diff", "ds.json", "fp16-master", "--json")
    assert differs.code == 1
    assert "policy.compute_dtype" in [change["path"] for change in differs.object["changes"]]


def test_a_file_that_is_there_stays_unless_told_otherwise(floatwise: Call, here: Path) -> None:
    path = here / "ds.json"
    mine = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "fp16": {"enabled": True, "hysteresis": 3},
    }
    path.write_text(json.dumps(mine))
    arguments = ("export", "--to", "deepspeed", "--recipe", "bf16-master", "--stage", "1", "-o", "ds.json")
    refused = floatwise(*arguments)
    assert refused.code == 2
    assert "--merge keeps its other keys, --force replaces it" in refused.err
    assert json.loads(path.read_text()) == mine
    assert floatwise(*arguments, "--merge").code == 0
    merged = json.loads(path.read_text())
    assert merged["optimizer"] == mine["optimizer"]
    assert merged["train_micro_batch_size_per_gpu"] == 8
    assert "fp16" not in merged
    assert merged["bf16"]["enabled"] is True
    assert floatwise(*arguments, "--force").code == 0
    assert json.loads(path.read_text()).get("optimizer") != mine["optimizer"]


def test_what_is_no_precision_stays_in_a_merged_file(floatwise: Call, here: Path) -> None:
    path = here / "accelerate.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: fp16\n")
    assert floatwise("export", "--to", "accelerate", "--recipe", "bf16-mixed", "-o", path, "--merge").code == 0
    lines = path.read_text().splitlines()
    assert {"distributed_type: MULTI_GPU", "num_processes: 4", "mixed_precision: bf16"} <= set(lines)


def test_a_key_that_stays_and_contradicts_the_plan_is_told(floatwise: Call, here: Path) -> None:
    mine = {"communication_data_type": "bf16"}
    (here / "ds.json").write_text(json.dumps(mine))
    save_plan(recipe("bf16-master"), here / "precision.toml")
    done = floatwise("export", "--to", "deepspeed", "-o", "ds.json", "--merge")
    written = json.loads((here / "ds.json").read_text())
    # Either the exporter writes the key itself, or it says that the one that is there changes the plan.
    assert done.code == 2 or written["communication_data_type"] == "fp32"


def test_findings_give_exit_code_one_and_their_line(floatwise: Call, here: Path) -> None:
    (here / "ds.json").write_text(
        '{"zero_optimization": {"stage": 1},\n"bf16": {"enabled": true,\n"check_grad_overflow": false}}'
    )
    done = floatwise("import", "ds.json")
    assert done.code == 1
    assert "ds.json:3: bf16.check_grad_overflow" in done.out


def test_every_system_is_listed(floatwise: Call) -> None:
    listed = floatwise("export", "--list", "--json")
    assert listed.code == 0
    assert [row["name"] for row in json.loads(listed.out)] == list(SYSTEMS)
    shown = floatwise("export", "--list").out
    assert all(name[:12] in shown for name in SYSTEMS)


def test_a_system_and_its_keys_are_explained(floatwise: Call) -> None:
    assert "fp16.hysteresis" in floatwise("explain", "deepspeed").out
    page = floatwise("explain", "deepspeed.fp16.hysteresis", "--json").object
    assert page["default"] == 2
    assert "unknown key of DeepSpeed" in floatwise("explain", "deepspeed.fp16.histeresis").err


BAD = [
    (("export",), ("got no system; give --to with one of: ",)),
    (("export", "--to", "deepspead"), ("unknown system 'deepspead'", "did you mean 'deepspeed'?")),
    (("export", "--to", "fsdp2"), ("there is no precision.toml here",)),
    (("export", "--to", "fsdp2", "--recipe", "fp32", "-o", "a.json"), ("PyTorch FSDP2 is not configured in json",)),
    (("export", "--to", "fsdp2", "--recipe", "fp32", "--form", "xml"), ("unknown form", "known: python")),
    (("export", "--to", "fsdp2", "--recipe", "fp32", "--stage", "1"), ("got the option stage = 1; PyTorch FSDP2 has",)),
    (
        ("export", "--to", "deepspeed", "--recipe", "fp32", "--stage", "4"),
        ("got stage = 4, expected 0 or 1 or 2 or 3",),
    ),
    (("export", "--to", "fsdp2", "--recipe", "fp32", "-O", "stage"), ("write --option NAME=VALUE",)),
    (("export", "--to", "fsdp2", "--recipe", "fp32", "--for-version", "1.0"), ("its keys are known from",)),
    (("export", "--to", "fsdp2", "--recipe", "fp8-rowwise"), ("would not train this plan as it says",)),
    (("export", "--to", "fsdp2", "--recipe", "fp32", "-o", "no/a.py"), ("make the directory first",)),
    (("import", "nope.json"), ("nope.json: there is no such file",)),
    (("import", "other.json"), ("other.json:1: this is no configuration of a system known here",)),
    (("import", "other.json", "--from", "x"), ("unknown system 'x'",)),
    (("import", "other.json", "-o", "plan.json"), ("a plan file's name ends in .toml",)),
    (("import",), ("Missing argument",)),
    (("diff", "a.toml", "fp32"), ("a.toml: there is no such file",)),
]


@pytest.mark.parametrize(("arguments", "parts"), BAD, ids=lambda value: " ".join(value)[:60])
def test_bad_input_is_refused(floatwise: Call, here: Path, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    (here / "other.json").write_text('{"colour": "blue"}')
    done = floatwise(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    for part in parts:
        assert part in done.err
    assert sorted(path.name for path in here.iterdir()) == ["other.json"]

# SPDX-License-Identifier: Apache-2.0
"""The scripts that users write (tests/scripts), recorded: every kind of loop is understood, and none is changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.tap.running import record_here, run_alone

from floatwise.errors import ScriptError
from floatwise.probe.recording import Recording, load_recording
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

SCRIPTS = Path(__file__).parents[1] / "scripts"
#: More iterations than any script has: it runs to its own end.
ALL = 1000


@dataclass(frozen=True)
class Row:
    """A script and what its recording must say.

    Attributes:
      script: Its file.
      iterations: Training iterations it has.
      parameters: Trainable parameters.
      sites: Some of the sites, in the order of first use.
      optimizers: Class names of what steps.
      found: Kinds and lines of what it does about precision.
      arguments: Its own arguments.
    """

    script: str
    iterations: int
    parameters: int
    sites: tuple[str, ...]
    optimizers: tuple[str, ...] = ("Adam",)
    found: tuple[tuple[str, int], ...] = ()
    arguments: tuple[str, ...] = ()


SEQUENTIAL = ("0", "2", "")

CORE_SCRIPTS = {
    "plain_loop.py",
    "class_trainer.py",
    "notebook_style.py",
    "accumulation.py",
    "two_optimizers_one_model.py",
    "gan.py",
    "argparse_script.py",
    "imports_sibling/train.py",
    "exec_config.py",
    "manual_sgd.py",
    "functional_tensors.py",
    "lbfgs.py",
    "tied_weights.py",
}

PLAIN = (
    Row("plain_loop.py", 30, 385, (*SEQUENTIAL, "criterion:mse_loss"), ("SGD",)),
    Row("main_function.py", 30, 5443, ("fc1", "fc2", "fc3", "", "CrossEntropyLoss:cross_entropy")),
    Row("class_trainer.py", 30, 1732, ("0", "3", "", "CrossEntropyLoss:cross_entropy"), ("AdamW",)),
    Row("notebook_style.py", 40, 251, (*SEQUENTIAL, "MSELoss:mse_loss", "MSELoss")),
    Row("accumulation.py", 30, 1445, (*SEQUENTIAL, ":cross_entropy"), ("AdamW",)),
    Row("two_optimizers_one_model.py", 30, 1666, ("backbone.0", "backbone.2", "head"), ("AdamW", "SGD")),
    Row("gan.py", 30, 483, ("main.0", "main.2", "", "netG.main.0", "netG.main.2", "netG")),
    Row("grad_penalty.py", 30, 355, ("0", "2", "D.0", "D.2", "D")),
    Row("trains_twice.py", 49, 1242, ("0.0", "1", "", "MSELoss", "classifier.0", "classifier.2"), ("AdamW",)),
    Row("argparse_script.py", 30, 321, SEQUENTIAL, ("SGD",), arguments=("run1", "--lr", "0.05")),
    Row("exec_config.py", 11, 1072, SEQUENTIAL, ("AdamW",), arguments=("--max_iters=10",)),
    Row("relative_file.py", 40, 73, SEQUENTIAL),
    Row("imports_sibling/train.py", 32, 4739, ("0", "1.body.0", "2.body.2", "3", "")),
    Row("manual_sgd.py", 30, 161, SEQUENTIAL, ("update by hand",)),
    Row("functional_tensors.py", 40, 1100, (":mm", ":mm#2"), ("update by hand",)),
    Row("lbfgs.py", 20, 49, SEQUENTIAL, ("LBFGS",)),
    Row("eval_first.py", 30, 178, (*SEQUENTIAL, "loss_fn")),
    Row("eval_between.py", 30, 897, ("layers.0", "layers.4", "layers", "")),
    Row("ends_early.py", 3, 4, ("",), ("SGD",)),
    Row("scheduler.py", 30, 281, SEQUENTIAL, ("SGD",)),
    Row("clip_grad.py", 30, 2185, ("", "readout"), ("RMSprop",)),
    Row("ema.py", 30, 289, SEQUENTIAL),
    Row("frozen_backbone.py", 30, 387, ("0.0", "0.1", "1", ""), ("SGD",)),
    Row("tied_weights.py", 30, 9504, ("encoder", "layer.self_attn:linear", "layer.linear1", "decoder")),
    Row("attention_manual.py", 30, 9408, ("att.0", "att.0:matmul", "att.0:softmax", "att.1:linear#2", ":einsum")),
    Row("batchnorm_cnn.py", 30, 1572, ("conv1", "bn1", "conv2", "shortcut", "fc"), ("SGD",)),
    Row("lstm_text.py", 30, 35871, ("embedding", "lstm", "fc", "")),
    Row("embedding_sparse.py", 30, 6400, ("center", "context", ":bmm"), ("SparseAdam",)),
    Row("checkpointing.py", 30, 9745, ("inp", "block1.ff.0", "out", "block2.ff.0", "block2.ff.2"), ("AdamW",)),
    Row("multi_output_dict.py", 30, 775, ("encoder.proj", "encoder", "cls", "box", ""), ("AdamW",)),
    Row("bce_loss.py", 30, 337, ("hidden", "out", "", "criterion:binary_cross_entropy")),
    Row("custom_log_softmax_loss.py", 30, 550, (*SEQUENTIAL, "criterion:log_softmax", "criterion", ":softmax")),
    Row("custom_autograd_function.py", 30, 353, ("out", "")),
    Row("float64_model.py", 30, 129, SEQUENTIAL),
    Row("saves_in_finally.py", 30, 262, SEQUENTIAL),
)

#: One of each kind of loop, in the fast part.
CORE = [row for row in PLAIN if row.script in CORE_SCRIPTS]

MIXED = (
    Row("uses_autocast_bf16.py", 30, 5770, ("0", "2", "3", ""), ("AdamW",), (("found_autocast", 15),)),
    Row(
        "uses_autocast_fp16_scaler.py",
        30,
        1633,
        ("0", "2", "4", ""),
        ("SGD",),
        (("found_grad_scaler", 13), ("found_autocast", 19)),
    ),
    Row("uses_half_weights.py", 30, 676, SEQUENTIAL, ("SGD",), (("found_low_precision_weights", 9),)),
    Row("uses_bf16_weights.py", 30, 1796, ("emb", "norm", "out"), ("AdamW",), (("found_low_precision_weights", 19),)),
    Row("default_dtype_bf16.py", 30, 641, SEQUENTIAL, ("SGD",), (("found_default_dtype", 4),)),
)

COMPILED = (
    Row("compiled.py", 30, 1476, ("up", "norm", "down", ""), ("AdamW",), (("found_compile", 19),)),
    Row("compiled_decorator.py", 30, 449, SEQUENTIAL, ("SGD",), (("found_compile", 11), ("found_compile", 17))),
)

#: Trainers, several processes and workers: each needs a process of its own.
IN_CHILDREN = (
    Row("dataloader_workers.py", 6, 193, SEQUENTIAL),
    Row("mp_spawn.py", 6, 517, SEQUENTIAL, ("SGD",)),
    Row("torchrun_ddp.py", 6, 641, SEQUENTIAL, ("AdamW",), (("found_launcher", 0),)),
    Row("accelerate_loop.py", 6, 610, SEQUENTIAL, ("AdamW",)),
    Row("accelerate_fp16.py", 6, 321, SEQUENTIAL, found=(("found_trainer_setting", 6),)),
    Row("hf_trainer.py", 6, 22688, ("model.layers.0.self_attn.q_proj", "model.norm", "lm_head"), ("AdamW",)),
    Row(
        "hf_trainer_bf16.py",
        6,
        37922,
        ("bert.encoder.layer.0.attention.self.query", "classifier"),
        ("AdamW",),
        (("found_trainer_setting", 27),),
    ),
    Row("lightning_trainer.py", 6, 339, ("encoder.0", "encoder.2", "decoder.0", "decoder.2")),
    Row("lightning_bf16.py", 6, 1669, ("net.0", "net.2", ""), ("AdamW",), (("found_trainer_setting", 30),)),
    Row("lightning_fabric.py", 6, 769, SEQUENTIAL),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the scripts: some write files beside themselves."""
    copy = tmp_path_factory.mktemp("scripts") / "scripts"
    shutil.copytree(SCRIPTS, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pt"))
    return copy


@pytest.fixture
def in_child(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recording]:
    """Records a script for six iterations in a process of its own."""
    monkeypatch.chdir(folder)

    def record(script: str, steps: int = 6) -> Recording:
        output = folder / "child.recording"
        job = Job(script, steps=steps, output=str(output))
        with Child("floatwise.probe.child", job, f"recording {script}") as child:
            steps_told = [m["index"] for m in child.messages() if m["event"] == "step"]
        assert steps_told == list(range(len(steps_told)))
        return load_recording(output)

    return record


def by_name(row: Row) -> str:
    return row.script.removesuffix(".py")


def check(row: Row, recording: Recording) -> None:
    assert recording.steps == len(recording.losses) == row.iterations
    assert recording.parameters == row.parameters
    assert recording.optimizers == row.optimizers
    assert [(kind, where) for kind, where, _ in recording.found] == [
        (kind, f"{row.script}:{line}" if line else "") for kind, line in row.found
    ]
    paths = [site.path for site in recording.sites]
    assert [path for path in paths if path in row.sites] == list(row.sites)
    assert all(loss == loss for loss in recording.losses)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=by_name(row), marks=() if row in CORE else pytest.mark.slow) for row in PLAIN]
)
def test_recording_changes_nothing_of_a_training(row: Row, folder: Path) -> None:
    alone = run_alone(row.script, folder, row.arguments)
    ran = record_here(row.script, folder, ALL, row.arguments)
    assert ran.failure == ""
    assert ran.recording is not None
    check(row, ran.recording)
    assert ran.output == alone, "the losses it prints are the same to their last digit"


@pytest.mark.parametrize("row", MIXED, ids=by_name)
def test_mixed_precision_in_the_script_is_found_and_switched_off(row: Row, folder: Path) -> None:
    ran = record_here(row.script, folder, ALL, row.arguments)
    assert ran.failure == ""
    assert ran.recording is not None
    check(row, ran.recording)
    assert ran.recording.parameter_dtype == "float32"
    assert "bfloat16" not in ran.output
    assert "float16" not in ran.output
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("row", COMPILED, ids=by_name)
def test_compiled_scripts_are_recorded_uncompiled(row: Row, folder: Path) -> None:
    ran = record_here(row.script, folder, ALL, row.arguments)
    assert ran.recording is not None
    check(row, ran.recording)


@pytest.mark.slow
@pytest.mark.parametrize("row", IN_CHILDREN, ids=by_name)
def test_trainers_and_several_processes(row: Row, in_child: Callable[..., Recording]) -> None:
    check(row, in_child(row.script))


def test_float64_is_told(folder: Path) -> None:
    ran = record_here("float64_model.py", folder, 4)
    assert ran.recording is not None
    assert ran.recording.parameter_dtype == "float64"


def test_another_seed_changes_the_losses(folder: Path) -> None:
    losses = []
    for offset in (0, 0, 1):
        ran = record_here("plain_loop.py", folder, 3, seed_offset=offset)
        assert ran.recording is not None
        losses.append(ran.recording.losses)
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_every_value_and_a_sample_tell_the_same_of_small_tensors(folder: Path) -> None:
    full, sampled = (record_here("plain_loop.py", folder, 4, full=full).recording for full in (True, False))
    assert full is not None
    assert sampled is not None
    assert full.summaries.keys() == sampled.summaries.keys()
    for key, summary in full.summaries.items():
        assert summary.amax == sampled.summaries[key].amax
        assert summary.counts.tolist() == sampled.summaries[key].counts.tolist()


STOPPED = ("saves_in_finally.py", "infinite_loop.py", "bare_except.py")


@pytest.mark.parametrize(
    "script", [STOPPED[0], *(pytest.param(script, marks=pytest.mark.slow) for script in STOPPED[1:])]
)
def test_a_script_stops_after_its_steps_wherever_its_loop_is(
    script: str, folder: Path, in_child: Callable[..., Recording]
) -> None:
    saved = folder / "final.pt"
    saved.unlink(missing_ok=True)
    assert in_child(script, steps=4).steps == 4
    assert not saved.exists(), "no weights that were trained for a few steps are saved"


@pytest.mark.slow
def test_a_script_that_ends_itself_midway(in_child: Callable[..., Recording]) -> None:
    with pytest.raises(ScriptError, match="exit code 17") as caught:
        in_child("broken/calls_os_exit.py")
    assert "watchdog: giving up" in str(caught.value)


def test_every_script_has_its_row() -> None:
    rows = {row.script for row in (*PLAIN, *MIXED, *COMPILED, *IN_CHILDREN)}
    # A configuration that another one reads; needs a package that tests/tap/test_deepspeed.py looks for.
    others = {*STOPPED, "config_small.py", "deepspeed_config.py"}
    assert {path.name for path in SCRIPTS.glob("*.py")} - others <= rows

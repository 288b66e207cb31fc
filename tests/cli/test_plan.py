# SPDX-License-Identifier: Apache-2.0
"""`floatwise plan`: what it writes, what it prints, and deciding again from a recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import SCRIPTS, Call

from floatwise.hardware import detect
from floatwise.plan import load_plan
from floatwise.probe import load_recording

KEYS = {
    "recipe",
    "target",
    "target_name",
    "here",
    "script",
    "steps",
    "parameters",
    "matrix_share",
    "reasons",
    "loss_scale",
    "islands",
    "verdicts",
    "measured",
    "findings",
    "evidence",
}
RECIPES = {"fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master", "fp8-tensorwise", "fp8-rowwise"}


def test_deciding_again_from_a_recording(floatwise: Call, here: Path, recording: Path) -> None:
    done = floatwise("plan", "--recording", recording, "--target", "t4", "-o", "t4.toml")
    assert (done.code, done.err) == (0, "")
    assert "NVIDIA T4" in done.out
    assert sorted(path.name for path in here.iterdir()) == ["t4.html", "t4.toml"], "the recording stays where it is"
    plan = load_plan("t4.toml")
    assert (plan.target, plan.script) == ("nvidia-t4", "plain_loop.py")
    assert "NVIDIA T4" in (here / "t4.html").read_text()


@pytest.mark.parametrize("target", ["t4", "a100", "H100", "RTX 3090", "p100", "mi300x"])
def test_one_json_object_on_stdout_alone(floatwise: Call, here: Path, recording: Path, target: str) -> None:
    done = floatwise("plan", "--recording", recording, "--target", target, "--json")
    assert (done.code, done.err) == (0, "")
    decision = done.object
    assert decision.keys() == KEYS
    assert decision["verdicts"].keys() == RECIPES
    assert decision["verdicts"][decision["recipe"]]["status"] == "chosen"
    assert decision["script"] == "plain_loop.py"
    assert decision["here"] is False
    assert decision["measured"] is None
    assert all(reason.keys() == {"code", "text", "data"} for reason in decision["reasons"])
    assert load_plan("precision.toml").recipe == decision["recipe"]


def test_the_same_recording_gives_the_same_decision(floatwise: Call, recording: Path) -> None:
    answers = [floatwise("plan", "--recording", recording, "--target", "a100", "--json").object for _ in range(2)]
    assert answers[0] == answers[1]


def test_without_a_target_it_is_decided_for_this_machine(floatwise: Call, recording: Path) -> None:
    cpu = detect()[-1].device
    done = floatwise("plan", "--recording", recording, "--json")
    if cpu is None:
        assert done.code == 2
        assert "has no row in the hardware table" in done.err
    else:
        assert (done.code, done.object["target"], done.object["here"]) == (0, cpu.id, True)


def test_a_target_does_not_need_this_machine_to_be_known(
    floatwise: Call, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    unknown = [replace(each, device=None, reported_name="Strange CPU") for each in detect()]
    monkeypatch.setattr("floatwise.cli.targets.detect", lambda: unknown)
    assert floatwise("plan", "--recording", recording, "--target", "t4", "--json").object["here"] is False
    here = floatwise("plan", "--recording", recording)
    assert here.code == 2
    assert "'Strange CPU'" in here.err
    assert "--target" in here.err


def test_the_plan_file_is_replaced_whole(floatwise: Call, here: Path, recording: Path) -> None:
    (here / "mine.toml").write_text("old")
    (here / "mine.html").write_text("old")
    assert floatwise("plan", "--recording", recording, "--target", "a100", "-o", "mine.toml").code == 0
    assert load_plan("mine.toml").target.startswith("nvidia-a100")
    assert (here / "mine.html").read_text() != "old"


def test_another_target_leaves_the_plan_in_force(floatwise: Call, here: Path, recording: Path) -> None:
    (here / "precision.toml").write_text("old")
    assert floatwise("plan", "--recording", recording, "--target", "a100").code == 0
    assert (here / "precision.toml").read_text() == "old"
    assert load_plan("precision-nvidia-a100.toml").target == "nvidia-a100"


def test_several_targets_get_a_plan_each_and_one_report(floatwise: Call, here: Path, recording: Path) -> None:
    targets = ("--target", "t4,A100", "--target", "nvidia-t4")
    done = floatwise("plan", "--recording", recording, *targets, "--report", "page.html")
    assert (done.code, done.err) == (0, "")
    names = sorted(path.name for path in here.iterdir())
    assert names == ["page.html", "precision-nvidia-a100.toml", "precision-nvidia-t4.toml"], "each target once"
    assert [load_plan(name).target for name in names[1:]] == ["nvidia-a100", "nvidia-t4"]
    assert all(word in done.out for word in ("NVIDIA T4", "NVIDIA A100", "page.html"))


def test_several_targets_are_one_json_object(floatwise: Call, recording: Path) -> None:
    answer = floatwise("plan", "--recording", recording, "--target", "t4", "--target", "h100", "--json").object
    assert [decision["target"] for decision in answer["targets"]] == ["nvidia-t4", "nvidia-h100"]
    assert all(decision.keys() == KEYS for decision in answer["targets"])


def test_the_report_again_from_the_recording_alone(floatwise: Call, here: Path, recording: Path) -> None:
    done = floatwise("report", recording, "--target", "t4", "--target", "v100", "-o", "again.html")
    assert (done.code, done.out, done.err) == (0, "again.html\n", "")
    assert [path.name for path in here.iterdir()] == ["again.html"], "no plan is written"
    assert "NVIDIA V100" in (here / "again.html").read_text()


def test_chinese_when_asked_for(floatwise: Call, recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    done = floatwise("plan", "--recording", recording, "--target", "t4")
    assert done.code == 0
    assert any("\u4e00" <= character <= "\u9fff" for character in done.out)


def test_a_reader_that_hangs_up_sees_no_traceback(here: Path, recording: Path) -> None:
    command = f"'{sys.executable}' -m floatwise plan --recording '{recording}' --target t4 --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert len(done.stdout) == 10
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_script_is_recorded_decided_and_measured(floatwise: Call, here: Path) -> None:
    done = floatwise("plan", SCRIPTS / "plain_loop.py", "--steps", "8", "--json")
    assert (done.code, done.err) == (0, "")
    decision = done.object
    assert decision["here"] is True
    assert decision["steps"] == 8
    assert sorted(path.name for path in here.iterdir()) == ["precision.html", "precision.recording", "precision.toml"]
    assert load_recording("precision.recording").steps == 8
    plan = load_plan("precision.toml")
    assert plan.recipe == decision["recipe"]
    tried = [name for name, verdict in decision["verdicts"].items() if verdict["status"] == "not_worth_it"]
    if tried or not plan.is_float32:
        # Whatever is accepted here is trained beside float32 before it is written.
        assert decision["measured"]["steps"] >= 1
        assert len(decision["measured"]["losses"]["float32"]) == 8


@pytest.mark.slow
def test_a_script_is_rehearsed_for_a_device_that_is_not_here(floatwise: Call, here: Path) -> None:
    script = here / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for step in range(20):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(64, 256)).square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    done = floatwise("plan", "train.py", "--target", "t4", "--steps", "4", "--json")
    assert (done.code, done.err) == (0, "")
    verdict = done.object["verdicts"]["fp16-mixed"]
    assert verdict["rehearsal"]["status"] == "accept"
    assert len(verdict["rehearsal"]["comparison"]["losses"]) == 4
    assert verdict["predicted"]["speed"]["predicted"] is True
    again = floatwise("plan", "--recording", "precision.recording", "--target", "v100", "--json").object
    assert again["verdicts"]["fp16-mixed"]["rehearsal"]["status"] == "accept", "kept in the recording"
    plain = floatwise("plan", "train.py", "--target", "t4", "--steps", "4", "--no-rehearse", "--json").object
    assert plain["verdicts"]["fp16-mixed"]["rehearsal"] is None


@pytest.mark.slow
def test_arguments_after_two_dashes_are_the_scripts(floatwise: Call) -> None:
    script = SCRIPTS / "argparse_script.py"
    done = floatwise("plan", script, "--steps", "6", "--no-measure", "--json", "--", "run1", "--lr", "0.05")
    assert done.code == 0
    assert load_recording("precision.recording").arguments == ("run1", "--lr", "0.05")
    missing = floatwise("plan", script, "--no-measure")
    assert missing.code == 2
    assert "  | argparse_script.py: error: the following arguments are required" in missing.err
    assert "exit code 2" in missing.err


@pytest.mark.slow
@pytest.mark.parametrize(("script", "steps"), [("ends_early.py", "20"), ("plain_loop.py", "3")])
def test_too_few_steps_to_measure_are_enough_to_decide(floatwise: Call, script: str, steps: str) -> None:
    done = floatwise("plan", SCRIPTS / script, "--steps", steps, "--json")
    assert done.code == 0
    assert done.object["steps"] == 3
    assert done.object["measured"] is None


@pytest.mark.slow
def test_what_the_script_does_already_is_told(floatwise: Call) -> None:
    done = floatwise("plan", SCRIPTS / "uses_autocast_fp16_scaler.py", "--steps", "5", "--no-measure", "--json")
    codes = {finding["code"]: finding["where"] for finding in done.object["findings"]}
    assert codes["found_autocast"].endswith("uses_autocast_fp16_scaler.py:19")
    assert codes["found_grad_scaler"].endswith("uses_autocast_fp16_scaler.py:13")


def children_of(parent: int) -> list[int]:
    """Returns the processes whose parent is this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_interrupting_leaves_no_process_and_no_file(here: Path) -> None:
    (here / "hangs.py").write_text("import torch\nprint('begun', flush=True)\nwhile True:\n    pass\n")
    # A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from floatwise.cli import run\n"
        "sys.exit(run(['plan', 'hangs.py']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    deadline = time.monotonic() + 20
    while not (children := children_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2.0)  # it is importing torch, or in its endless loop
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err in ("", "interrupted\n")
    assert children
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert [path.name for path in here.iterdir()] == ["hangs.py"]


def test_the_documented_keys_are_json(floatwise: Call, recording: Path) -> None:
    text = floatwise("plan", "--recording", recording, "--target", "t4", "--json").out
    assert text.endswith("}\n")
    assert json.loads(text) == json.loads(json.dumps(json.loads(text), allow_nan=False))

# SPDX-License-Identifier: Apache-2.0
"""A script with a DeepSpeed configuration, recorded with DeepSpeed itself where it is installed."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from floatwise.errors import ScriptError
from floatwise.probe.recording import load_recording
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

SCRIPT = Path(__file__).parents[1] / "scripts" / "deepspeed_config.py"
HERE = importlib.util.find_spec("deepspeed") is not None

#: Put before a script: two operators of DeepSpeed's are otherwise compiled first, for minutes.
UNCOMPILED = """\
import deepspeed
for name in deepspeed.ops.__compatible_ops__:
    if "shm" in name:
        deepspeed.ops.__compatible_ops__[name] = False
"""
FROM_A_FILE = """\
import json
with open("ds_config.json", "w") as file:
    json.dump(ds_config, file)
ds_config = "ds_config.json"
"""


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("from_a_file", [False, True])
def test_its_configuration_is_found_and_the_baseline_is_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_a_file: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    source = SCRIPT.read_text().replace('"weight_decay": 0.01', '"weight_decay": 0.01, "torch_adam": True')
    if from_a_file:
        source = source.replace("parser = argparse", f"{FROM_A_FILE}parser = argparse")
    Path("train.py").write_text(UNCOMPILED + source)
    job = Job("train.py", ("--steps", "6"), 4, output="out.recording")
    with Child("floatwise.probe.child", job, "recording train.py") as child:
        assert list(child.messages())[-1]["event"] == "done"
    recording = load_recording("out.recording")
    assert recording.steps == 4
    assert recording.parameters == 32 * 64 + 64 + 64 * 32 + 32
    assert recording.parameter_dtype == "float32"
    assert all(map(math.isfinite, recording.losses))
    assert [site.path for site in recording.matrix_sites] == ["0", "2"]
    # Without `deepspeed` or `torchrun` it is run as the one process of a group of one.
    assert [kind for kind, _, _ in recording.found] == ["found_launcher", "found_deepspeed"]
    assert '"fp16": {"enabled": true' in recording.found[1][2]


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="DeepSpeed is installed")
def test_without_deepspeed_its_own_words_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPT.parent)
    job = Job(SCRIPT.name, steps=4)
    with Child("floatwise.probe.child", job, "recording") as child, pytest.raises(ScriptError) as caught:
        list(child.messages())
    assert "the script ended itself and said: This script needs DeepSpeed" in str(caught.value)

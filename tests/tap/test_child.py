# SPDX-License-Identifier: Apache-2.0
"""What a child tells its parent: of a training, of a script that never trains, and of one that fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tap.running import Ran, record_here

from floatwise.errors import ScriptError
from floatwise.probe.recording import load_recording
from floatwise.tap.job import Job
from floatwise.tap.launch import Child
from floatwise.tap.launcher import expects_launcher

SCRIPTS = Path(__file__).parents[1] / "scripts"

TRAINS = """
import sys, torch
torch.manual_seed(0)
layer = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def step():
    loss = layer(torch.randn(4, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SCRIPTS / "broken", tmp_path / "broken")
    return tmp_path / "broken"


def record(source: str, folder: Path, steps: int = 5) -> Ran:
    (folder / "train.py").write_text(TRAINS + source)
    return record_here("train.py", folder, steps)


def test_it_tells_of_every_iteration_and_of_its_end(folder: Path) -> None:
    ran = record("while True: step()", folder)
    assert [m["event"] for m in ran.messages] == ["started", *["step"] * 5, "done"]
    assert [m["index"] for m in ran.messages[1:-1]] == list(range(5))
    assert ran.messages[-1] == {"event": "done", "steps": 5, "parameters": 4}
    assert ran.recording is not None
    assert ran.recording.losses == tuple(m["loss"] for m in ran.messages[1:-1])


ENDS_EARLY = ["step()", "step(); sys.exit()", "step(); sys.exit(0)", "step(); sys.exit(1)", "step(); quit()"]


@pytest.mark.parametrize("source", ENDS_EARLY)
def test_a_script_that_ends_before_its_steps_has_trained_all_the_same(source: str, folder: Path) -> None:
    ran = record(source, folder)
    assert ran.messages[-1] == {"event": "done", "steps": 1, "parameters": 4}


def test_training_in_a_thread_is_waited_for(folder: Path) -> None:
    ran = record("import threading\nthreading.Thread(target=lambda: (step(), step(), step())).start()", folder)
    assert ran.messages[-1]["steps"] == 3


NEVER_TRAINS: list[tuple[str, tuple[str, ...]]] = [
    ("never_steps.py", ("never_steps.py ended without a training step", "50 module calls, 0 backward passes", "--")),
    ("empty.py", ("empty.py ended without a training step: 0 module calls",)),
    ("no_backward.py", ("0 backward passes", "no parameter had a gradient: does it call loss.backward()?")),
]


@pytest.mark.parametrize(("script", "parts"), NEVER_TRAINS)
def test_a_script_that_never_trains(script: str, parts: tuple[str, ...], folder: Path) -> None:
    ran = record_here(script, folder, 5)
    assert all(part in ran.failure for part in parts)
    assert ran.messages[-1]["traceback"] == ""
    assert ran.recording is None


def test_gradients_without_an_update(folder: Path) -> None:
    ran = record("layer(torch.ones(1, 3)).sum().backward()", folder)
    assert "1 backward passes, and no parameter changed" in ran.failure


@pytest.mark.filterwarnings("ignore")
def test_training_in_processes_that_are_not_followed(folder: Path) -> None:
    lines = "import multiprocessing\nprocess = multiprocessing.get_context('fork').Process(target=step)\n"
    ran = record(f"{lines}process.start()\nprocess.join()\n", folder)
    assert "those of multiprocessing.Process are not" in ran.failure
    assert "multiprocessing.Process" not in record("pass", folder).failure


FAILS: list[tuple[str, str]] = [
    ("no_parameters.py", "no_parameters.py:17: the script failed with RuntimeError: element 0 of tensors does not"),
    ("missing_package.py", "install the package that provides 'our_internal_data_tools'"),
    ("raises_on_import.py", "raises_on_import.py:5: the script failed with ImportError"),
    ("raises_midway.py", "raises_midway.py:9: the script failed with IndexError"),
    ("two_files_deep_error.py", "scaling.py:6: the script failed with TypeError"),
    ("cuda_only.py", "this machine has no CUDA device"),
    ("sys_exit.py", "sys_exit.py:9: the script ended itself with exit code 3"),
    ("not_python.py", "not_python.py"),
    ("shell_script.py", "shell_script.py:2: not valid Python"),
    ("syntax_error.py", "syntax_error.py:6: not valid Python: expected ':'"),
    ("missing.py", "cannot read missing.py"),
]


@pytest.mark.parametrize(("script", "message"), FAILS)
def test_a_script_that_fails(script: str, message: str, folder: Path) -> None:
    ran = record_here(script, folder, 10)
    assert message in ran.failure
    traceback = ran.messages[-1]["traceback"]
    assert "floatwise" not in traceback.replace(str(folder), "")
    assert "site-packages" not in traceback
    assert ran.recording is None


def test_a_failure_two_files_deep_shows_every_frame_of_the_users(folder: Path) -> None:
    traceback = record_here("two_files_deep_error.py", folder, 10).messages[-1]["traceback"]
    assert re.findall(r'/(\w+)\.py"', traceback) == ["two_files_deep_error", "features", "scaling"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("LOCAL_RANK"), True),
        (KeyError("learning_rate"), False),
        (KeyError(), False),
        (ValueError("environment variable RANK expected, but not set"), True),
        (ValueError("bad"), False),
        (ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py"), True),
        (ModuleNotFoundError("No module named 'x'", name="x"), False),
        (RuntimeError("LOCAL_RANK"), False),
    ],
)
def test_who_expects_a_launcher(error: Exception, expected: bool) -> None:
    assert expects_launcher(error) is expected


STOPPING = """
import multiprocessing, sys, time
{before}
from floatwise.tap.stop import stop_process
try:
    stop_process()
finally:
    open("saved", "w")
"""


@pytest.mark.parametrize(
    "before",
    [
        "",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        "class Tee: pass\nsys.stdout = Tee()",
        "import atexit; atexit.register(lambda: open('saved', 'w'))",
        "import threading; threading.Thread(target=time.sleep, args=(60,)).start()",
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_stopping_runs_nothing_of_the_script(before: str, tmp_path: Path) -> None:
    source = STOPPING.format(before=before)
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "saved").exists()


def test_what_was_printed_before_the_stop_is_not_lost(tmp_path: Path) -> None:
    source = STOPPING.format(before="print('printed'); print('told', file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("printed\n", "told\n")


SPAWNS = """
import torch, torch.multiprocessing as mp
def work(rank, world):
    torch.nn.Linear(2, 2)(torch.ones(1, 3))
if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""


@pytest.mark.slow
def test_a_failure_in_a_spawned_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SPAWNS)
    with Child("floatwise.probe.child", Job("train.py"), "recording") as child, pytest.raises(ScriptError) as caught:
        list(child.messages())
    assert "train.py:6: a process that the script spawned failed with RuntimeError: mat1 and mat2" in str(caught.value)
    assert "in work" in caught.value.traceback
    assert "floatwise" not in caught.value.traceback.replace(str(tmp_path), "")


@pytest.mark.slow
def test_a_script_that_closes_its_output_and_starts_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "import subprocess\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    Path("train.py").write_text(TRAINS + lines + "sys.stdout.close(); sys.stderr.close()\nwhile True: step()")
    with Child("floatwise.probe.child", Job("train.py", steps=3, output="out"), "recording") as child:
        assert list(child.messages())[-1]["event"] == "done"
    assert load_recording("out").steps == 3

# SPDX-License-Identifier: Apache-2.0
"""The parent's end of a child process: its messages, its end in every form, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floatwise.errors import ScriptError
from floatwise.tap.channel import Channel
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

ROOT = Path(__file__).parents[2]
Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a child that runs a few lines of Python."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def started(source: str, **fields: Any) -> Child:
        script = tmp_path / "train.py"
        script.write_text(source)
        return Child("tests.tap.stub_child", Job(str(script), **fields), "running train.py")

    return started


def session(leader: int) -> list[int]:
    """Returns the processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, of_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it has just ended
            if int(of_session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def test_a_job_survives_the_way_to_the_child(tmp_path: Path) -> None:
    job = Job(
        "train.py", ("--lr", "0.1", "größe"), steps=7, seed=3, paced=True, options={"full": True, "plan": "x = 1"}
    )
    (tmp_path / "job.json").write_text(job.dumps(), encoding="utf-8")
    assert Job.load(str(tmp_path / "job.json")) == job
    assert Job.loads(job.dumps()) == job


def test_messages_arrive_in_order_and_end_with_done(start: Start) -> None:
    source = """
channel.send("started")
for index in range(job.steps):
    channel.send("step", index=index, loss=float("nan") if index else 0.5)
channel.send("done", arguments=job.arguments)
"""
    with start(source, steps=3, arguments=("a", "b")) as child:
        messages = list(child.messages())
    assert [m["event"] for m in messages] == ["started", "step", "step", "step", "done"]
    assert messages[1]["loss"] == 0.5
    assert messages[-1]["arguments"] == ["a", "b"]


def test_a_paced_child_waits_for_each_word(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    source = f"""
for index in range(3):
    channel.send("step", index=index)
    with open({str(log)!r}, "a") as log:
        log.write(f"before {{index}}\\n")
    channel.wait()
channel.send("done")
"""
    with start(source) as child:
        for index in range(3):
            assert child.next() == {"event": "step", "index": index}
            assert wait_until(lambda index=index: log.exists() and f"before {index}" in log.read_text())  # type: ignore[misc]
            time.sleep(0.05)
            assert log.read_text().count("before") == index + 1, "it does not run ahead"
            child.go()
        assert child.next() == {"event": "done"}


def test_a_failure_that_the_child_reports(start: Start) -> None:
    source = 'channel.send("failed", message="train.py:1: it failed", traceback="Traceback:\\nValueError")'
    with start(source) as child, pytest.raises(ScriptError) as caught:
        list(child.messages())
    assert str(caught.value) == "train.py:1: it failed"
    assert caught.value.traceback == "Traceback:\nValueError"


def test_without_a_traceback_the_last_output_is_shown(start: Start) -> None:
    source = """
import sys
for number in range(100):
    print("line", number)
print("USDT:2026-11-30 SyncActivityProfilerHandler.cpp:52] profiler_start", file=sys.stderr)
sys.stdout.flush()
channel.send("failed", message="it never trained", traceback="")
"""
    with start(source) as child, pytest.raises(ScriptError) as caught:
        list(child.messages())
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["it never trained", "its last output was:"]
    assert lines[2:] == [f"  | line {number}" for number in range(88, 100)]


ENDS: list[tuple[str, str]] = [
    ("import os; os._exit(17)", "the script ended the process itself with exit code 17"),
    ("import os; os._exit(0)", "the script ended the process itself with exit code 0"),
    ("import sys; sys.exit(3)", "the script ended the process itself with exit code 3"),
    ("import os; os.kill(os.getpid(), 9)", "the script was ended by SIGKILL (out of memory?)"),
    ("import os; os.abort()", "the script was ended by SIGABRT"),
    ("import ctypes; ctypes.string_at(0)", "the script was ended by SIGSEGV"),
    ("import os; [os.close(fd) for fd in (0, 1, 2)]; os._exit(4)", "exit code 4"),
]


@pytest.mark.parametrize(("source", "message"), ENDS)
def test_ends_without_a_word(start: Start, source: str, message: str) -> None:
    with start(f'channel.send("started")\nprint("last words", flush=True)\n{source}') as child:
        assert child.next()["event"] == "started"
        with pytest.raises(ScriptError) as caught:
            child.next()
    assert message in str(caught.value)
    assert "while running train.py" in str(caught.value)
    assert "  | last words" in str(caught.value)


@pytest.mark.parametrize("end", ["import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)"])
def test_messages_sent_just_before_the_end_arrive(start: Start, end: str) -> None:
    source = f'for index in range(50): channel.send("step", index=index)\nchannel.send("done")\n{end}'
    with start(source) as child:
        assert len(list(child.messages())) == 51


def test_a_worker_that_outlives_its_script_does_not_hide_the_end(start: Start) -> None:
    source = """
import os, time
channel.send("started")
if os.fork() == 0:
    time.sleep(600)
os._exit(5)
"""
    with start(source) as child:
        leader = child._process.pid
        child.next()
        began = time.monotonic()
        with pytest.raises(ScriptError, match="exit code 5"):
            child.next()
        assert time.monotonic() - began < 8
        assert len(session(leader)) == 1
    assert wait_until(lambda: session(leader) == [])


def test_megabytes_of_output_block_nothing(start: Start) -> None:
    source = """
import sys
for _ in range(2000):
    print("x" * 4000)
    print("y" * 1000, file=sys.stderr)
channel.send("done")
"""
    with start(source) as child:
        assert [m["event"] for m in child.messages()] == ["done"]


HANGING: list[str] = [
    "while True: pass",
    "import time\nwhile True: time.sleep(1)",
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "channel.wait()",
    "try:\n    while True: pass\nexcept BaseException:\n    open('saved', 'w')",
    "import os, time\nfor _ in range(3): os.fork()\nwhile True: time.sleep(1)",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
]


@pytest.mark.parametrize("source", HANGING)
def test_closing_ends_whatever_hangs(
    start: Start, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with start(f'channel.send("started")\n{source}') as child:
        leader = child._process.pid
        child.next()
        assert leader in session(leader)
    assert wait_until(lambda: session(leader) == [])
    assert not (tmp_path / "saved").exists(), "no line of the script runs after the end"


def test_an_error_in_the_parent_leaves_no_process(start: Start) -> None:
    leader = 0

    def fail() -> None:
        nonlocal leader
        with start("import time; time.sleep(600)") as child:
            leader = child._process.pid
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert wait_until(lambda: session(leader) == [])


def test_an_interrupted_parent_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('channel.send("started")\nimport time\ntime.sleep(600)\n')
    # A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
    parent = """
import signal
from floatwise.tap.job import Job
from floatwise.tap.launch import Child
signal.signal(signal.SIGINT, signal.default_int_handler)
with Child("tests.tap.stub_child", Job("train.py"), "running") as child:
    child.next()
    print(child._process.pid, flush=True)
    child.next()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    leader = int(process.stdout.readline())
    assert session(leader)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode != 0
    assert wait_until(lambda: session(leader) == [])


def test_a_killed_parent_is_not_outlived_for_long(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        'import time\nchannel.send("started")\nwhile True:\n    time.sleep(0.05)\n    channel.send("step")\n'
    )
    parent = """
import os
from floatwise.tap.job import Job
from floatwise.tap.launch import Child
child = Child("tests.tap.stub_child", Job("train.py"), "running")
child.next()
print(child._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", parent], cwd=tmp_path, env=environment, capture_output=True, text=True)
    leader = int(done.stdout)
    assert wait_until(lambda: session(leader) == []), "the next message tells it that nobody listens"


def test_a_stranger_at_the_door_is_turned_away(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client

    with start('import time\ntime.sleep(0.5)\nchannel.send("done")') as child:
        with pytest.raises((AuthenticationError, EOFError, ConnectionError)):
            Client(child._listener.address, authkey=b"wrong")
        assert [m["event"] for m in child.messages()] == ["done"]


def test_nothing_is_left_behind(start: Start) -> None:
    folders = set()
    for _ in range(3):
        with start('channel.send("done")') as child:
            folders.add(child._folder.name)
            list(child.messages())
    assert not any(Path(folder).exists() for folder in folders)
    assert wait_until(lambda: threading.active_count() < 10)


def test_the_childs_surroundings(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "kept")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    source = """
import os, sys
channel.send("done", hash=os.environ["PYTHONHASHSEED"], mine=os.environ["MINE"], stdin=sys.stdin.read())
"""
    with start(source) as child:
        assert list(child.messages())[-1] == {"event": "done", "hash": "0", "mine": "kept", "stdin": ""}


def test_a_child_whose_parent_is_gone_ends() -> None:
    channel = Channel()
    code = """
import os
from floatwise.tap.channel import ADDRESS_VARIABLE, KEY_VARIABLE, Channel
from multiprocessing.connection import Listener
import threading
listener = Listener(None, authkey=b"0" * 16)
os.environ[ADDRESS_VARIABLE], os.environ[KEY_VARIABLE] = listener.address, (b"0" * 16).hex()
threading.Thread(target=lambda: listener.accept().close()).start()
channel = Channel()
channel.send("started")
channel.wait()
print("still here")
"""
    assert channel._connection is None, "it connects with its first message"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, "")

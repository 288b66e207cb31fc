# SPDX-License-Identifier: Apache-2.0
"""The timed child: what it sends, that float32 is the script itself, and that seeds move where they should."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floatwise.errors import ScriptError
from floatwise.keras.script.importing import when_imported
from floatwise.plan import ModulePolicy, Policy, dumps_plan, recipe
from floatwise.tap.job import Job
from floatwise.tap.launch import Child
from floatwise.tap.patches import Patches

SCRIPTS = Path(__file__).parents[2] / "scripts" / "keras_run"
pytest.importorskip("keras")


def train(script: str, plan: Any, steps: int, monkeypatch: pytest.MonkeyPatch, **job: Any) -> list[dict[str, Any]]:
    """Runs a real child and returns its messages; a paced one is let on after a while."""
    asked = Job(str(SCRIPTS / script), (), steps, options={"plan": dumps_plan(plan)}, **job)
    messages = []
    with Child("floatwise.keras.script.child", asked, f"training {script}") as child:
        for message in child.messages():
            messages.append(message)
            if asked.paced and message["event"] == "step":
                time.sleep(1.0)
                child.go()
    return messages


@pytest.fixture(params=["tensorflow", "jax", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip(request.param)
    monkeypatch.setenv("KERAS_BACKEND", request.param)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    return str(request.param)


def test_steps_and_the_end_are_told(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = ModulePolicy(module="nowhere", policy=Policy(compute_dtype="float32"))
    plan = recipe("fp16-mixed", modules=(nowhere,))
    first, *steps, end = train("own_policy.py", plan, 5, monkeypatch, paced=True)
    assert first == {"event": "started"}
    assert [(step["index"], step["timed"]) for step in steps] == [(n, n >= 3) for n in range(5)]
    assert steps[3]["seconds"] < 0.9  # the wait is not in them
    assert (end["event"], end["peak_bytes"], end["unmatched"]) == ("done", None, ["nowhere"])
    assert end["skipped_steps"] == 2 or backend == "torch"
    assert set(end["products"]["asked"]) <= {"float16", "float32"}
    assert (end["products"]["ran"] is not None) is (backend == "jax")


def test_other_seeds_give_other_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("jax")
    losses = {}
    for offset in (0, 1):
        messages = train("subclassed.py", recipe("fp32"), 3, monkeypatch, seed_offset=offset)
        losses[offset] = [message["loss"] for message in messages if message["event"] == "step"]
    assert all(a != b for a, b in zip(losses[0], losses[1], strict=True))


def test_a_script_that_takes_no_step_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("torch")
    with pytest.raises(ScriptError, match=r"fails.py:5: the script failed with ZeroDivisionError"):
        train("fails.py", recipe("fp32"), 3, monkeypatch)
    with pytest.raises(ScriptError, match="it made no Keras model, and fit, train_on_batch and an optimizer's apply"):
        train("idle.py", recipe("fp32"), 3, monkeypatch)


def test_actions_run_once_in_order_right_after_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waited_for.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    patches, order = Patches(), []

    def note(name: str) -> Callable[[], None]:
        return lambda: order.append((name, sys.modules["waited_for"].ready))

    before = list(sys.meta_path)
    when_imported(patches, "waited_for", note("first"))
    when_imported(patches, "waited_for", note("second"))
    when_imported(patches, "never_imported", note("never"))
    import waited_for  # type: ignore[import-not-found]

    assert type(waited_for.__spec__.loader).__name__ == "SourceFileLoader"
    when_imported(patches, "waited_for", note("late"))
    assert order == [("first", True), ("second", True), ("late", True)]
    patches.undo()
    assert sys.meta_path == before
    del sys.modules["waited_for"]

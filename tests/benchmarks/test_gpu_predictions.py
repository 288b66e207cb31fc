# SPDX-License-Identifier: Apache-2.0
"""Loss curves, memory and speed: both sides are measured, and what parts them is reported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import losses, speed
from benchmarks.gpu.clock import ratio, take_turns
from benchmarks.gpu.losses import Curve
from benchmarks.gpu.machine import machine
from benchmarks.gpu.models import model_of
from benchmarks.gpu.part import Part
from benchmarks.gpu.sides import Rehearsal
from tests.benchmarks.gpu_events import Found

from floatwise.hardware import get_device
from floatwise.plan import recipe
from floatwise.rehearse.roofline_rates import Rates

ROOT = Path(__file__).resolve().parents[2]
RATES = Rates(matrix={"float32": 1e10, "bfloat16": 2e10}, vector=1e9, bytes_per_second=1e10)

REAL = Curve((3.0, 2.5, 2.0), (8.0, 4.0, 4.0), (0,))


def test_rehearsed_and_real_training_agree_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MODELS", ("text_gpt",))
    found = Found(losses.run)
    assert not found.disagreements
    rows = {row["recipe"]: row for row in found.rows}
    assert set(rows) == {"float32", "bfloat16", "float16"}
    float16 = rows["float16"]
    assert float16["rehearsed"]["skipped"] == float16["real"]["skipped"]
    assert len(float16["real"]["skipped"]) >= 2
    assert len(set(float16["real"]["scales_log2"])) > 2
    assert float16["rehearsed"]["losses"] != float16["real"]["losses"]
    assert rows["float32"]["mean_distance"] == 0
    assert rows["bfloat16"]["mean_distance"] < rows["bfloat16"]["float32_spread"]


@pytest.mark.parametrize(
    ("rehearsed", "what", "detail"),
    [
        (
            replace(REAL, scales=(8.0, 8.0, 4.0), skipped=(1,)),
            "skipped steps and loss scales, text_gpt, float16",
            "from step 1 on the scales are 2**3 and 2**2; skipped (1,) and (0,)",
        ),
        (
            replace(REAL, skipped=(0, 2)),
            "skipped steps and loss scales, text_gpt, float16",
            "skipped (0, 2) and (0,)",
        ),
        (replace(REAL, losses=(3.0, 3.0, 3.0)), "losses, text_gpt, float16", "0.5 apart, float32's spread 0.1"),
        (
            replace(REAL, losses=(3.0, 2.5, float("nan"))),
            "losses, text_gpt, float16",
            "nan apart, float32's spread 0.1",
        ),
    ],
)
def test_curves_that_part_are_reported(rehearsed: Curve, what: str, detail: str) -> None:
    def give(part: Part) -> None:
        losses.give(part, "text_gpt", "float16", rehearsed, REAL, REAL, 0.1)

    assert Found(give).disagreements == {what: detail}


def test_the_scale_starts_where_the_first_steps_overflow() -> None:
    plan = losses.overflowing(Rehearsal(), model_of("digits_cnn", "tiny"))
    assert plan.loss_scale is not None
    curve = losses.train(Rehearsal(), model_of("digits_cnn", "tiny"), plan, 8)
    assert curve.skipped[:1] == (0,)
    assert len(curve.skipped) < 8
    assert curve.scales[0] == plan.loss_scale.initial_scale


def test_memory_is_predicted_and_measured() -> None:
    # In a process of its own: what other tests leave behind would count as live until it is collected.
    program = (
        "import json\n"
        "from benchmarks.gpu import memory\n"
        "from tests.benchmarks.gpu_events import Found\n"
        "memory.MODELS, memory.RECIPES = ('translator',), ('fp32',)\n"
        "print(json.dumps(Found(memory.run).events))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    events = json.loads(done.stdout.splitlines()[-1])
    row, worst = (event["value"] for event in events if event["event"] == "row")
    assert row["predicted"]["predicted"] is True
    assert row["measured"]["tensor_bytes"] > 100_000
    assert abs(row["error"]) < 0.02
    assert worst["error"] == row["error"]
    assert worst["within_known_error"] == 1
    # Its error is what is to be found out.
    assert not [event for event in events if event["event"] == "check"]


def test_speed_is_predicted_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measured_rates", lambda: RATES)
    monkeypatch.setattr(speed, "TINY_MODELS", ("perceptron",))
    found = Found(speed.run)
    float32, bfloat16 = found.rows
    assert float32["measured_ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert bfloat16["measured_ratio"]["median"] > 0
    assert bfloat16["predicted"]["predicted"] is True
    assert bfloat16["error"] == pytest.approx(bfloat16["predicted"]["ratio"] / bfloat16["measured_ratio"]["median"] - 1)
    assert found.left_out == ["tf32 and fp16-mixed"]
    assert not found.checks


def test_speed_is_predicted_from_the_row_of_a_gpu() -> None:
    plans = {name: recipe(name) for name in ("fp32", "tf32", "bf16-mixed")}
    found = speed.predict(model_of("perceptron", "tiny"), plans, get_device("h200"), "cuda")
    assert found["fp32"].ratio == 1
    assert {prediction.device for prediction in found.values()} == {"nvidia-h200"}


def test_a_gpu_without_a_row_is_measured_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "device_row", lambda: None)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA X1")
    events: list[dict[str, Any]] = []
    assert speed.rates_of(Part("cuda", "tiny", 60.0, events.append)) is None
    assert events[0]["value"]["what"] == "predictions of speed"
    assert "no row for NVIDIA X1" in events[0]["value"]["why"]


def test_loss_scales_are_measured_where_nothing_is_skipped() -> None:
    settled = speed.settled(recipe("fp16-mixed"))
    assert settled.loss_scale is not None
    assert settled.loss_scale.initial_scale == 1024
    assert speed.settled(recipe("fp32")) == recipe("fp32")


def test_runs_take_turns_in_another_order_each_round() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = take_turns(runs, "cpu", warm_up=1, rounds=2)
    assert "".join(order) == "bcacababc"
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 2, "b": 2, "c": 2}
    assert all(seconds > 0 for column in times.values() for seconds in column)


def test_ratios_are_of_neighbours() -> None:
    assert ratio([2.0, 40.0, 8.0], [1.0, 10.0, 4.0]) == (2.0, 2.0, 4.0)
    assert ratio([3.0], [1.0]) == (3.0, 3.0, 3.0)


def test_the_machine_is_described() -> None:
    found = machine("cpu")
    assert (found["device"], found["row"], found["capability"]) == ("CPU", None, None)
    assert set(found["packages"]) == {"numpy", "pydantic", "transformers"}

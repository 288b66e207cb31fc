# SPDX-License-Identifier: Apache-2.0
"""The comparison of ways to train: bytes are those of real tensors, verdicts are right, one failure is one row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


@contextmanager
def training(variant: str, **options: Any) -> Iterator[Any]:
    """A run of a variant of the smallest model, in this process."""
    child = import_module("variant_child")
    run = child.VariantRun(child.job(variant, "tiny", 6, **options))
    try:
        yield run
    finally:
        precision = getattr(run.training, "precision", None)
        if precision is not None:
            precision.close()


@pytest.mark.parametrize(
    ("variant", "weights", "gradients", "states", "cast_modules"),
    [
        ("float32", 4, 4, 8, ()),
        ("autocast", 4, 4, 8, (nn.Linear,)),
        ("bf16-mixed", 4, 4, 8, (nn.Linear,)),
        ("split", 4, 2, 8, (nn.LayerNorm,)),
        ("kahan", 4, 2, 8, (nn.LayerNorm,)),
        ("stochastic", 2, 2, 8, (nn.LayerNorm,)),
    ],
)
def test_bytes_are_counted_by_kind(
    variant: str, weights: float, gradients: float, states: float, cast_modules: tuple[type[nn.Module], ...]
) -> None:
    with training(variant) as run:
        losses = [run.iteration(index) for index in range(run.warm_up)]
        result = run.result()
        # Matrices are cast to bfloat16, and the gains and biases of norms, where they are bfloat16, to float32. The
        # cast bias of a linear layer is not kept: no gradient needs it.
        modules: list[Any] = [m for m in run.model.modules() if isinstance(m, cast_modules)]
        casts = sum(2 * m.weight.numel() if isinstance(m, nn.Linear) else 8 * m.weight.numel() for m in modules)
    number = result["parameters"]
    # AdamW's step counters are a number for each parameter tensor.
    states += 4 * len(list(run.model.parameters())) / number
    expected = {"weights": weights, "gradients": gradients, "states": states, "casts": casts / number}
    assert result["bytes_per_parameter"] == pytest.approx({**expected, "all": sum(expected.values())}, abs=1e-9)
    assert len(set(losses)) == run.warm_up


def test_peak_is_above_what_lives_from_step_to_step() -> None:
    with training("float32") as run:
        for index in range(run.warm_up):
            run.iteration(index)
        result = run.result()
    assert result["peak_bytes"] > 16 * result["parameters"]


def test_every_variant_sees_the_same_weights_and_batches() -> None:
    first = {}
    for variant in ("float32", "bf16-mixed", "split"):
        with training(variant, memory=False) as run:
            first[variant] = run.iteration(0)
    assert first["bf16-mixed"] == pytest.approx(first["float32"], abs=2e-3)
    assert first["split"] == pytest.approx(first["float32"], abs=2e-3)
    with training("float32", memory=False, seed=1) as other:
        assert other.iteration(0) != first["float32"]


def test_copies_of_weights_count_while_they_live() -> None:
    bytes_of = import_module("tensor_bytes")
    layer = torch.nn.Linear(8, 4, bias=False)
    with bytes_of.WeightCopies(layer) as copies:
        kept = layer.weight.t().to(torch.bfloat16)
        layer.weight.to(torch.bfloat16)
        torch.ones(100).to(torch.bfloat16)
    assert copies.live_bytes() == 8 * 4 * 2
    del kept
    assert copies.live_bytes() == 0


def score(speed: float, bytes_per_parameter: float, within: bool | None = None) -> Any:
    kinds = {"weights": 4.0, "gradients": 2.0, "states": 8.0, "casts": 0.0, "all": bytes_per_parameter}
    ratio = (speed, speed - 0.01, speed + 0.01)
    return import_module("scores").Score(
        speed={"float32": ratio, "autocast": ratio},
        memory_ratio=0.9,
        peak_bytes=9,
        bytes_per_parameter=kinds,
        other_bytes=2**20,
        final_loss=None if within is None else 2.5,
        within_spread=within,
    )


def sizes(split: Any, failures: dict[str, str] | None = None, loss_range: Any = None) -> Any:
    return import_module("scores").SizeScores(
        parameters=10_000_000,
        steps=40,
        scores={} if split is None else {"split": split},
        failures=failures or {},
        float32_losses=(2.5, 2.6, 2.4) if loss_range else (),
        loss_range=loss_range,
    )


@pytest.mark.parametrize(
    ("name", "speed", "bytes_per_parameter", "within", "passed"),
    [
        ("text_gpt", 1.0, 14.0001, True, [True, True, True]),
        ("text_gpt", 0.999, 14.0, True, [False, True, True]),
        ("text_gpt", 1.2, 14.02, False, [True, False, False]),
        ("gpt_100m", 1.05, 14.0, None, [True, True]),
        ("gpt_100m", 1.04, 14.0, None, [False, True]),
        ("tiny", 0.1, 99.0, True, []),
    ],
)
def test_mode_split_is_judged(
    name: str, speed: float, bytes_per_parameter: float, within: bool | None, passed: list[bool]
) -> None:
    size = sizes(score(speed, bytes_per_parameter, within), loss_range=None if within is None else (2.3, 2.7))
    assert [verdict.passed for verdict in import_module("verdicts").judge_size(name, size)] == passed


def test_a_variant_that_failed_is_a_row_with_its_reason_and_fails_when_required() -> None:
    size = sizes(None, {"split": "PlanError: why", "accelerate": "accelerate is not installed"})
    lines = list(import_module("scores").table("text_gpt", size))
    assert "accelerate         not measured: accelerate is not installed" in lines
    assert [str(v) for v in import_module("verdicts").judge_size("text_gpt", size)] == [
        "FAIL: text_gpt, split trains: PlanError: why"
    ]


@pytest.mark.parametrize(
    ("plain", "kernel", "passed"),
    [
        (2.29, 1.3, [True, True]),
        (2.3, 1.31, [False, False]),
        (2.0, None, [True, None]),
    ],
)
def test_the_update_is_judged(plain: float, kernel: float | None, passed: list[bool | None]) -> None:
    found = {
        "split, plain": (plain, plain, plain),
        "split, kernel": "no kernel here" if kernel is None else (kernel, kernel, kernel),
    }
    assert [verdict.passed for verdict in import_module("verdicts").judge_update(found)] == passed


def test_the_update_alone_steps_weights_that_have_masters() -> None:
    child = import_module("update_child")
    run = child.UpdateRun(child.job("split", 2, (2, 4, 8)))
    weight = run.optimizer.param_groups[0]["params"][0]
    before = weight.detach().clone()
    run.iteration(0)
    assert weight.dtype is torch.bfloat16
    assert not torch.equal(weight, before)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_figure_for_the_kernel_is_of_the_kernel(monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    def take_turns(runs: dict[str, Any], what: str) -> None:
        for way, run in runs.items():
            run.seconds = [2.0, 2.0, 2.0] if "plain" in way else [1.0, 1.0, 1.0]
            run.result = {"kernel": kernel and run.job.options["kernel"]}

    command = import_module("master_weights")
    monkeypatch.setattr(command, "take_turns", take_turns)
    found = command.measure_update(3, (1, 2, 2))
    assert found["split, plain"] == (2.0, 2.0, 2.0)
    assert found["split, kernel"] == (
        (1.0, 1.0, 1.0) if kernel else "no kernel here: it takes a C compiler to build it"
    )


@pytest.mark.slow
def test_the_command_prints_every_part_and_one_failure_leaves_the_others_be(
    benchmarks_on_the_path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    script = str(benchmarks_on_the_path / "master_weights.py")
    hidden = tmp_path / "accelerate.py"  # found before the real one, as if that were not installed
    hidden.write_text("raise ModuleNotFoundError(name='accelerate')\n")
    ended = subprocess.run(
        [
            sys.executable,
            script,
            "--sizes",
            "tiny",
            "--steps",
            "6",
            "--only",
            "accelerate",
            "split",
            "--json",
            str(file),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(file.read_text())
    assert set(figures["tiny"]["scores"]) == {"float32", "autocast", "split"}
    assert figures["tiny"]["failures"] == {"accelerate": "accelerate is not installed"}
    assert torch.__version__ in ended.stdout
    assert "accelerate         not measured: accelerate is not installed" in ended.stdout.splitlines()

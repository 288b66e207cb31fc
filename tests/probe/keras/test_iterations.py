# SPDX-License-Identifier: Apache-2.0
"""Every way of training is heard, iteration by iteration, with the batch's own unscaled loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import run_program
from tests.probe.keras.zoo import BACKENDS

pytest.importorskip("keras")
pytestmark = pytest.mark.slow

PROGRAM = (Path(__file__).parent / "iterations_program.py").read_text(encoding="utf-8")
FITS = {"fit plain": 4, "fit eager": 4, "fit uncompiled": 4, "fit scaled": 4}
LOOPS = {
    "tensorflow": {"eager": 3, "graph": 3, "xla": 3, "apart": 3, "whole epoch": 2},
    "jax": {"eager": 3, "jitted": 3, "apart": 3},
    "torch": {"loop": 3, "two backward passes": 1},
}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(name)
    return name


@pytest.fixture(scope="module")
def found(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    environment = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return run_program(PROGRAM, tmp_path_factory.mktemp(backend), **environment)


def test_every_iteration_is_heard_with_its_own_loss(backend: str, found: Any) -> None:
    wanted = dict(FITS)
    for name, count in LOOPS[backend].items():
        wanted |= {f"{name} {scales}": count for scales in (False, True)}
    assert {name: len(found[name]["heard"]) for name in wanted} == wanted
    for name in wanted:
        # Losses of `fit` are told from running means, those of an epoch in one function from the same steps without it.
        tolerance = 1e-5 if name.startswith("fit") else 1e-6 if name.startswith("whole") else 1e-7
        assert found[name]["heard"] == pytest.approx(found[name]["had"], rel=tolerance), name


def test_scaling_by_a_power_of_two_changes_no_loss(found: Any) -> None:
    assert found["fit scaled"]["heard"] == pytest.approx(found["fit plain"]["heard"], rel=1e-6)


def test_several_batches_in_one_call_are_one_iteration(backend: str, found: Any) -> None:
    assert backend == "torch" or found["steps per execution"] == 2


def test_optimizers_are_named_and_nothing_is_heard_after_undo(found: Any) -> None:
    assert found["optimizers"] == ["SGD"]
    assert found["kinds"] == ["model", "optimizer"]
    assert found["after undo"] == 0

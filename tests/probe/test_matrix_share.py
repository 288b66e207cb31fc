# SPDX-License-Identifier: Apache-2.0
"""The part of a step's time that goes into matrix products, and who has the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.profiler import profile, schedule

from floatwise.probe.matrix_share import MatrixShareMeter
from floatwise.tap.patches import Patches


@pytest.fixture
def patches() -> Iterator[Patches]:
    each = Patches()
    yield each
    each.undo()


def products() -> None:
    x = torch.ones(400, 400)
    for _ in range(3):
        x = x @ x


def sums() -> None:
    for _ in range(50):
        torch.ones(1000).sum()


def measured(*work: Callable[[], None]) -> float:
    meter = MatrixShareMeter()
    meter.start()
    for each in work:
        each()
    meter.stop()
    assert meter.share is not None
    return meter.share


def test_products_take_nearly_all_and_sums_nothing() -> None:
    assert measured(products) > 0.8
    assert measured(sums) == 0.0
    assert 0.0 < measured(products, sums) < 1.0


def test_without_a_start_there_is_no_share() -> None:
    meter = MatrixShareMeter()
    meter.stop()
    assert meter.share is None


def test_a_step_without_operators_has_none() -> None:
    meter = MatrixShareMeter()
    meter.start()
    meter.stop()
    meter.stop()
    assert meter.share is None


def test_a_script_that_profiles_has_the_profiler(patches: Patches) -> None:
    meter = MatrixShareMeter()
    meter.install(patches)
    with profile() as own:
        meter.start()
        products()
        meter.stop()
    assert meter.share is None
    assert any("mm" in row.key for row in own.key_averages())


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_a_profiler_that_begins_in_the_middle_takes_over(patches: Patches) -> None:
    meter = MatrixShareMeter()
    meter.install(patches)
    cycles: list[profile] = []
    with profile(schedule=schedule(wait=1, warmup=1, active=1, repeat=1), on_trace_ready=cycles.append) as own:
        for step in range(5):
            if step == 1:
                meter.start()
            products()
            own.step()
    meter.stop()
    assert meter.share is None
    assert len(cycles) == 1


def test_the_meters_own_profile_is_not_the_scripts(patches: Patches) -> None:
    meter = MatrixShareMeter()
    meter.install(patches)
    meter.start()
    products()
    meter.stop()
    assert meter.share is not None

# SPDX-License-Identifier: Apache-2.0
"""Values handed over as NumPy samples: what is kept of them is what the torch probe keeps."""

from __future__ import annotations

import numpy as np
import pytest

from floatwise.probe.value_log import ValueLog
from floatwise.stats import overflow_share, summarise


def test_a_tensor_is_summarised_as_numpy_summarises_it() -> None:
    values = np.array([0.0, -1.5, 3e-6, 7e4, np.inf], np.float32)
    log = ValueLog()
    log.add("fc", "output", values, values.size, 7e4)
    assert log.summaries() == {("fc", "output"): summarise(values)}


def test_summaries_of_one_place_add_up_and_the_exact_amax_wins() -> None:
    log = ValueLog()
    log.add("fc", "output", np.ones(4, np.float32), 4, 1.0)
    log.add("fc", "output", np.ones(2, np.float32), 1000, 1e5)
    seen = log.summaries()["fc", "output"]
    assert (seen.seen, seen.elements, seen.amax, seen.observations) == (6, 1004, 1e5, 2)
    assert overflow_share(seen, "float16") == 1 / 1004


def test_a_place_is_looked_at_eight_times_an_iteration() -> None:
    log = ValueLog()
    for _ in range(2):
        for _ in range(20):
            log.add("cell", "output", np.ones(1, np.float32), 1, 1.0)
        log.weights({})
    assert log.summaries()["cell", "output"].observations == 16


def test_what_has_no_elements_is_passed_over() -> None:
    log = ValueLog()
    log.add("fc", "output", np.zeros(0, np.float32), 0, 0.0)
    assert log.summaries() == {}


@pytest.mark.parametrize(
    ("move", "lost"),
    [
        (0.0, None),
        (2.0**-12, {"float16": 3, "bfloat16": 3}),
        (2.0**-10, {"float16": 0, "bfloat16": 3}),
        (2.0**-7, {"float16": 0, "bfloat16": 0}),
    ],
)
def test_updates_that_a_stored_weight_would_lose_are_counted(move: float, lost: dict[str, int] | None) -> None:
    log = ValueLog()
    before = np.ones(3, np.float32)
    log.weights({"w": before})
    log.weights({"w": before + np.float32(move)})
    assert [dict(stall.lost) for stall in log.stalls()] == ([] if lost is None else [lost])
    assert log.summaries()["w", "update"].amax == move


def test_parameters_that_come_or_change_their_shape_are_not_compared() -> None:
    log = ValueLog()
    log.weights({"a": np.ones(3, np.float32)})
    log.weights({"a": np.ones(4, np.float32), "b": np.ones(2, np.float32)})
    assert log.stalls() == ()
    assert log.summaries() == {}


def test_a_large_parameter_is_compared_at_a_few_thousand_places() -> None:
    log = ValueLog(full=True)
    assert log.sampled is None
    assert ValueLog().sampled == 1 << 14
    large = np.zeros(1 << 16, np.float32)
    log.weights({"w": large})
    log.weights({"w": large + 1})
    assert log.summaries()["w", "update"].elements == -(-(1 << 16) // 17)

# SPDX-License-Identifier: Apache-2.0
"""The same surroundings for every test and for every process it starts, whatever the person's own are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Set before anything imports torch, which makes its thread pools once. Several threads per test process would
# contend, and sums would depend on their number.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["FLOATWISE_LANG"] = "en"
# For what the tests start, pytest's parallel workers included: they must agree on the names of tests made of sets.
os.environ["PYTHONHASHSEED"] = "0"
# Nothing may be fetched in a test; a model that is not made on the spot is a mistake.
os.environ["HF_HUB_OFFLINE"] = "1"
# Terminals and launchers leave these behind.
for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"):
    os.environ.pop(name, None)

# The same examples everywhere, and no verdict by the clock of a busy machine.
settings.register_profile("floatwise", deadline=None, derandomize=True)
settings.load_profile("floatwise")

#: Folders and files whose tests start processes, compile programs of a large library or train for long: they are left
#: out of the fast part (`make fast`), which has three minutes.
SLOW = (
    "benchmarks",
    "jax",
    "keras",
    "probe/jax",
    "probe/keras",
    "rehearse/failures/test_updates.py",
    "rehearse/test_float8_rehearsal.py",
    "rehearse/test_island_search.py",
    "scaffold/test_render.py",
    "torch/distributed",
    "torch/masters/test_sharded.py",
    "torch/test_loss_scaler_ranks.py",
    "torch/test_resume.py",
    "torch/test_run_masters.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `SLOW`."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and any(item.path.is_relative_to(here / name) for name in SLOW):
            item.add_marker(pytest.mark.slow)

# SPDX-License-Identifier: Apache-2.0
"""The same surroundings for every test and for every process it starts, whatever the person's own are."""

from __future__ import annotations

import os

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

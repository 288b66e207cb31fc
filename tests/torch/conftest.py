# SPDX-License-Identifier: Apache-2.0
"""Every test of the runtime starts from one seed and leaves CPU autocast as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from floatwise.torch.cuda_policy import missing_on_cpu


def _state() -> tuple[list[str], bool]:
    return missing_on_cpu(("exp",)), torch.is_autocast_enabled("cpu")


@pytest.fixture(autouse=True)
def _seeded_and_clean() -> Iterator[None]:
    before = _state()
    torch.manual_seed(0)
    yield
    assert _state() == before, "the test left CUDA's policy or an autocast region in place"

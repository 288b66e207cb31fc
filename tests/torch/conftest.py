# SPDX-License-Identifier: Apache-2.0
"""Every test of the runtime leaves CPU autocast as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from floatwise.torch.cuda_policy import missing_on_cpu


@pytest.fixture(autouse=True)
def _seeded_and_clean() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    assert missing_on_cpu(("exp",)) == ["exp"], "the test left CUDA's policy in place"
    assert not torch.is_autocast_enabled("cpu")

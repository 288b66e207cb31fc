# SPDX-License-Identifier: Apache-2.0
"""What stays float32 under MasterWeights, and an argument in the wrong place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from floatwise.errors import BadInputError
from floatwise.torch import MasterWeights


def test_norms_with_running_statistics_keep_float32_weights() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    optimizer = MasterWeights(torch.optim.SGD(model.parameters(), 0.1), dtype=torch.bfloat16, model=model)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 3, 4, 4)).float().sum().backward()
    optimizer.step()
    assert [p.dtype for p in model[1].parameters()] == [torch.float32] * 2
    assert {p.dtype for i in (0, 3) for p in model[i].parameters()} == {torch.bfloat16}


def test_a_format_in_the_place_of_the_mode_is_named() -> None:
    with pytest.raises(BadInputError, match=r"dtype=torch\.bfloat16"):
        MasterWeights(torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1), torch.bfloat16)  # type: ignore[arg-type]

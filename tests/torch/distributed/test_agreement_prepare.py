# SPDX-License-Identifier: Apache-2.0
"""`Precision.step` on several ranks: one decision, with a loss scale and with a norm to clip."""

from __future__ import annotations

import pytest
from tests.torch.distributed.agreement_prepare_workers import MODELS, Step, Use
from tests.torch.distributed.processes import on_ranks


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Use, list[Step]]]:
    folder = tmp_path_factory.mktemp("prepare")
    return on_ranks(2, "tests.torch.distributed.agreement_prepare_workers", "steps_of_every_use", folder)


@pytest.mark.parametrize("model", MODELS)
def test_an_infinity_on_one_rank_makes_both_skip(seen: list[dict[Use, list[Step]]], model: str) -> None:
    uses = [use for use in seen[0] if use.model == model]
    assert len(uses) == 8
    wrong = []
    for use in uses:
        first, then = (2.0**16, 2.0**15) if use.plan == "fp16-mixed" else (1.0, 1.0)
        expected = [
            Step(stepped=True, skipped=False, loss_scale=first, moved=True, finite=True),
            Step(stepped=False, skipped=True, loss_scale=then, moved=False, finite=True),
            Step(stepped=True, skipped=False, loss_scale=then, moved=True, finite=True),
        ]
        wrong += [(use, rank, ran[use]) for rank, ran in enumerate(seen) if ran[use] != expected]
    assert not wrong, "\n".join(f"{use} on rank {rank}: {steps}" for use, rank, steps in wrong)

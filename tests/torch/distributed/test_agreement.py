# SPDX-License-Identifier: Apache-2.0
"""An infinity in one place of one rank: every rank skips, whatever the parameters live on."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import pytest
from tests.torch.distributed.agreement_layouts import FOUR, TWO
from tests.torch.distributed.agreement_workers import Case, Ran
from tests.torch.distributed.processes import on_ranks

#: What every rank has seen in one case.
Ranks: TypeAlias = list[Ran]

LAYOUTS = [*TWO, *FOUR]

#: What torch 2.13's own scalers do; a change here is good news.
STOCK = {
    "plain": "ranks diverge",
    "sharded": "all skip",
    "replicated, sharded": "ranks diverge",
    "sharded, replicated": "all skip",
    "plain, sharded": "refuses",
    "sharded, plain": "refuses",
    "a shard is empty": "all skip",
    "DDP": "ranks diverge",
    "FSDP1 flat": "ranks diverge",
    "FSDP1 original": "ranks diverge",
    "FSDP2": "all skip",
    "FSDP2 after replicated": "ranks diverge",
    "tensor parallel": "refuses",
    "sequence parallel": "all skip",
    "HSDP2": "ranks diverge",
    "HSDP1": "ranks diverge",
    "FSDP2 of tensor parallel": "ranks diverge",
    "two meshes and plain": "refuses",
    "replicated on one axis": "ranks diverge",
    "pipeline of sharded stages": "refuses",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Ranks]:
    together: dict[Case, Ranks] = {}
    for count, function in ((2, "two"), (4, "four")):
        folder = tmp_path_factory.mktemp(function)
        by_rank: list[dict[Case, Ran]] = on_ranks(count, "tests.torch.distributed.agreement_workers", function, folder)
        together |= {case: [ran[case] for ran in by_rank] for case in by_rank[0]}
    return together


def outcome(ranks: Ranks) -> str:
    """Returns in words what the second step, the one with the infinity, did."""
    if any(ran.error for ran in ranks):
        return "refuses"
    skipped = {ran.weights[1] == ran.weights[2] for ran in ranks}
    if len(skipped) > 1 or len({tuple(ran.scales) for ran in ranks}) > 1:
        return "ranks diverge"
    return "all skip" if skipped == {True} else "all step"


def table(rows: dict[Case, Ranks]) -> str:
    lines = ["optimizer    unscale  inf on    outcome        per rank: scales, skipped, error"]
    for case, ranks in rows.items():
        where = f"{case.rank}:{case.parameter}" if case.rank >= 0 else "nowhere"
        seen = "; ".join(f"{ran.scales} {ran.skipped} {ran.error[:80]}" for ran in ranks)
        lines.append(f"{case.optimizer:12} {case.unscale!s:8} {where:9} {outcome(ranks):14} {seen}")
    return "\n".join(lines)


def of(results: dict[Case, Ranks], layout: str, scaler: str) -> dict[Case, Ranks]:
    return {case: ranks for case, ranks in results.items() if (case.layout, case.scaler) == (layout, scaler)}


def unscaled(results: dict[Case, Ranks], case: Case) -> Ranks:
    """Returns the same training without a scaler; scales that are powers of two leave no trace in it."""
    return results[Case(case.layout, case.optimizer, scaler="")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_skips_and_goes_on_as_if_the_step_had_not_been(results: dict[Case, Ranks], layout: str) -> None:
    rows = {c: ranks for c, ranks in of(results, layout, "LossScaler").items() if any(r.injected for r in ranks)}
    assert {case.rank for case in rows} == set(range(len(next(iter(rows.values()))))), "an infinity on each rank"
    wrong = {}
    for case, ranks in rows.items():
        for ran, clean in zip(ranks, unscaled(results, case), strict=True):
            skips = [clean.weights[0], clean.weights[1], clean.weights[1], clean.weights[2]]
            account = (ran.scales, ran.steps, ran.skipped)
            if ran.weights != skips or account != ([8.0, 4.0, 4.0], ["stepped", "skipped", "stepped"], 1):
                wrong[case] = ranks
    assert not wrong, table(wrong)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_healthy_steps_are_those_without_a_scaler_and_those_of_grad_scaler(
    results: dict[Case, Ranks], layout: str
) -> None:
    rows = {c: r for c, r in of(results, layout, "LossScaler").items() if not any(ran.injected for ran in r)}
    assert {case.optimizer for case in rows} >= {"SGD", "AdamW", "AdamW fused"}
    wrong = {}
    for case, ranks in rows.items():
        stock = results[Case(case.layout, case.optimizer, scaler="GradScaler")]
        references = [unscaled(results, case)] + ([stock] if STOCK[layout] != "refuses" else [])
        same = all(ran.weights == r.weights for ref in references for ran, r in zip(ranks, ref, strict=True))
        account = all((r.scales, r.steps, r.skipped) == ([8.0] * 3, ["stepped"] * 3, 0) for r in ranks)
        if not (same and account and any(len(set(ran.weights)) == 4 for ran in ranks)):
            wrong[case] = ranks
    assert not wrong, table(wrong)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stock_grad_scaler(results: dict[Case, Ranks], layout: str) -> None:
    rows = {c: ranks for c, ranks in of(results, layout, "GradScaler").items() if c.rank >= 0}
    assert len(rows) == 4
    assert {outcome(ranks) for ranks in rows.values()} == {STOCK[layout]}, table(rows)
    if STOCK[layout] == "refuses":
        assert all("mixed torch.Tensor and DTensor" in ran.error for ranks in rows.values() for ran in ranks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stock_sharded_grad_scaler(results: dict[Case, Ranks], layout: str) -> None:
    found: defaultdict[tuple[str, bool], set[str]] = defaultdict(set)
    rows = of(results, layout, "ShardedGradScaler")
    for case, ranks in rows.items():
        found[case.optimizer, case.unscale].add(outcome(ranks))
    loops = {"refuses"} if STOCK[layout] == "refuses" else {"all skip"}
    assert dict(found) == {
        ("AdamW", False): loops,
        ("AdamW", True): loops,
        ("AdamW fused", False): {STOCK[layout]},  # nothing is reduced in `step`
        ("AdamW fused", True): {"refuses"},  # found_inf of shape (1,), which the fused kernel does not take
    }, table(rows)

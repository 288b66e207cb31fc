# SPDX-License-Identifier: Apache-2.0
"""What is exported for DeepSpeed trains as the plan read back says: seen in the tensors of the real library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.exporters.deepspeed_program import train, train_in_two_processes
from tests.exporters.plans import plans

from floatwise.errors import PlanError
from floatwise.exporters import Exported, export_plan, get_system
from floatwise.plan import LossScale, Plan, Reductions, recipe

pytest.importorskip("deepspeed")

DEEPSPEED = get_system("deepspeed")
pytestmark = pytest.mark.slow

THREE = [1.0, 1.0, 1.0]
# Every recipe at every stage where it is exported: three stages of fp16 tables, one of fp16 autocast. (tf32 has fp32's
# keys.)
EXPORTED = [
    *((name, stage) for name in ("fp32", "bf16-mixed", "bf16-master") for stage in range(4)),
    ("fp16-mixed", 0),
    *(("fp16-master", stage) for stage in (1, 2, 3)),
]


def exported(plan: Plan, stage: int) -> Exported:
    return export_plan(plan, DEEPSPEED, options={"stage": stage})


def narrow(name: str) -> Plan:
    """Returns the recipe with its 16-bit format for sums, reductions and buffers."""
    dtype = "float16" if "fp16" in name else "bfloat16"
    return recipe(name, reductions=Reductions(reduce_dtype=dtype, accumulate_dtype=dtype, buffer_dtype=dtype))


def config_of(one: Exported) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(one.text)
    return values


def steps(config: dict[str, Any], factors: list[float], **more: Any) -> dict[str, Any]:
    return {"do": "steps", "config": config, "factors": factors, **more}


@pytest.mark.parametrize("make", [recipe, narrow], ids=["float32 sums", "16-bit sums"])
def test_three_steps_in_the_formats_of_the_plan_read_back(make: Any, tmp_path: Path) -> None:
    cases = [(name, stage, exported(make(name), stage)) for name, stage in EXPORTED]
    runs = train_in_two_processes([steps(config_of(one), THREE) for _, _, one in cases], tmp_path)
    for (name, stage, one), run in zip(cases, runs, strict=True):
        plan = one.reading.plan
        assert not isinstance(run, str), (name, stage, run)
        seen = {key: run[key] for key in ("params", "compute", "output", "buffer", "masters", "states", "skipped")}
        assert seen == {
            "params": [plan.policy.param_dtype],
            "compute": [plan.policy.compute_dtype],
            "output": plan.policy.output_dtype,
            "buffer": plan.reductions.buffer_dtype,
            "masters": ["float32"],
            "states": ["float32"],
            "skipped": 0,
        }, (name, stage)
        # Under autocast with ZeRO the plan speaks of Linear layers: the norm's gradients travel in float32.
        reduced = {plan.reductions.reduce_dtype}
        if "torch_autocast" in config_of(one) and stage:
            reduced.add("float32")
        assert set(run["sent"]) == reduced, (name, stage)


def test_micro_batches_are_summed_in_the_format_of_the_plan_read_back(tmp_path: Path) -> None:
    cases = []
    for name, stage in EXPORTED:
        for accumulate in ("float32", "float16" if "fp16" in name else "bfloat16"):
            plan = recipe(name, reductions=Reductions(accumulate_dtype=accumulate))
            cases.append((name, stage, exported(plan, stage)))
    runs = train(
        [{"do": "sums", "config": config_of(one), "float16": "fp16" in name} for name, _, one in cases], tmp_path
    )
    for (name, stage, one), arrived in zip(cases, runs, strict=True):
        accumulates = one.reading.plan.reductions.accumulate_dtype
        assert arrived == (3 if accumulates == "float32" else 0), (name, stage, accumulates)


def scale_runs() -> list[tuple[Any, ...]]:
    """Returns name, plan, stage, factors of the losses, and the scales, skipped steps and error they must give."""
    bad, big = 1e9, 2.0**12
    rows: list[tuple[Any, ...]] = []
    for stage in (1, 2, 3):
        plain = LossScale(initial_scale=big, growth_interval=2, growth="fixed")
        rows += [
            ("grows", plain, stage, [1.0] * 5, [big, big, big, 2 * big, 2 * big, 4 * big], 0, ""),
            ("falls", plain, stage, [1, bad, bad, 1], [big, big, big / 2, big / 4, big / 4], 2, ""),
            (
                "waits for three in a row",
                LossScale(initial_scale=big, growth="fixed", hysteresis=3),
                stage,
                [bad, bad, 1, bad, bad, bad],
                [big, big, big, big, big, big, big / 2],
                5,
                "",
            ),
            (
                "ends at the floor",
                LossScale(initial_scale=big, floor=big / 2, growth="fixed"),
                stage,
                [bad, bad],
                [big, big / 2],
                1,
                "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            ),
            (
                "stays",
                LossScale(mode="static", initial_scale=1024.0),
                stage,
                [1, bad, bad, 1],
                [1024.0] * 5,
                2,
                "",
            ),
        ]
    table = [(name, recipe("fp16-master", loss_scale=scale), *rest) for name, scale, *rest in rows]
    # DeepSpeed does not count what GradScaler skips.
    scales = [65536.0, 65536.0, 32768.0, 16384.0, 16384.0]
    return [*table, ("GradScaler falls", recipe("fp16-mixed"), 0, [1e-3, bad, bad, 1e-3], scales, 0, "")]


def test_the_loss_scale_follows_the_plan_read_back(tmp_path: Path) -> None:
    rows = scale_runs()
    runs = train(
        [steps(config_of(exported(plan, stage)), factors) for _, plan, stage, factors, *_ in rows],
        tmp_path,
    )
    for (name, _, stage, _, scales, skipped, error), run in zip(rows, runs, strict=True):
        assert (run["scales"], run["skipped"], run["error"]) == (scales, skipped, error), (name, stage)
        assert run["finite"], (name, stage)


FP16_BLOCK: dict[str, Any] = {"fp16": {"enabled": True}}
FP16_AUTOCAST: dict[str, Any] = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
BATCH: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}


def zero(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}}


def test_the_three_traps_are_there_and_are_not_exported(tmp_path: Path) -> None:
    def one_step(config: dict[str, Any], clip: float) -> dict[str, Any]:
        return steps({**BATCH, **config, "gradient_clipping": clip}, [1.0], rate=1.0)

    runs = train(
        [
            one_step(zero(0), 0.0),
            one_step(zero(0), 0.1),
            # The loss is not scaled, the gradients are divided.
            one_step({**FP16_BLOCK, **zero(0)}, 0.0),
            # Clipping acts on gradients times 65536.
            one_step({**FP16_AUTOCAST, **zero(1)}, 0.1),
            # The scale never falls: a loss that overflows at it is never learnt from.
            steps({**BATCH, **FP16_AUTOCAST, **zero(1)}, [1e3] * 12),
            steps({**BATCH, **FP16_AUTOCAST, **zero(0)}, [1.0, 1e9, 1.0, 1.0]),
            # What is exported in place of them.
            *(
                one_step(config_of(exported(recipe(name), stage)), clip)
                for name, stage in (("fp16-master", 1), ("fp16-mixed", 0), ("bf16-mixed", 1))
                for clip in (0.0, 0.1)
            ),
        ],
        tmp_path,
    )
    plain, clipped, unscaled, overclipped, stuck, falling, *instead = runs
    assert clipped["update"] == pytest.approx(0.1, rel=1e-4)
    assert plain["update"] > 0.2
    assert unscaled["update"] == pytest.approx(plain["update"] / 65536, rel=0.05)
    assert overclipped["update"] == pytest.approx(clipped["update"] / 65536, rel=0.05)
    assert set(stuck["scales"]) == {65536.0}
    assert (stuck["skipped"], stuck["update"]) == (12, 0)
    assert falling["scales"][:4] == [65536.0, 65536.0, 32768.0, 32768.0]
    for trained, like in zip(instead, [plain, clipped] * 3, strict=True):
        assert trained["update"] == pytest.approx(like["update"], rel=0.02)

    for name, stage in (("fp16-master", 0), ("fp16-mixed", 1), ("fp16-mixed", 2), ("fp16-mixed", 3)):
        with pytest.raises(PlanError, match=r"DeepSpeed .* would not train this plan as it says"):
            exported(recipe(name), stage)


def test_findings_are_true(tmp_path: Path) -> None:
    nan = [1.0, float("inf"), 1.0]
    bf16: dict[str, Any] = {**BATCH, "bf16": {"enabled": True}}
    unchecked: dict[str, Any] = {**BATCH, "bf16": {"enabled": True, "check_grad_overflow": False}}
    autocast: dict[str, Any] = {
        **BATCH,
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
        "communication_data_type": "fp32",
    }

    def fp16(**keys: Any) -> dict[str, Any]:
        return {**BATCH, **zero(1), "fp16": {"enabled": True, **keys}}

    pure = {"enabled": True, "bf16_master_weights_and_grads": True}
    moot = {**bf16, **zero(1), "torch_autocast": autocast["torch_autocast"]}
    runs = train(
        [
            *(steps({**bf16, **zero(stage)}, nan) for stage in range(4)),
            *(steps({**unchecked, **zero(stage)}, nan) for stage in range(4)),
            steps(fp16(hysteresis=0), [1e9] * 6),
            steps(fp16(initial_scale_power=40), [1.0] * 30),
            steps(fp16(loss_scale=65536.0), [1e9] * 6),
            steps(fp16(initial_scale_power=0, min_loss_scale=8), [1e9] * 4),
            steps(moot, THREE),
            steps({**BATCH, **zero(1), "fp61": {"enabled": True}}, THREE),
            *(steps({**autocast, **zero(stage)}, THREE) for stage in (1, 2, 3)),
            steps({**BATCH, **zero(1), "bf16": {**pure, "bf16_optimizer_states": True}}, THREE),
            steps({**BATCH, **zero(1), "bf16": pure, "data_types": {"grad_accum_dtype": "fp32"}}, THREE),
            steps({**BATCH, **zero(1), "bf16": pure}, THREE),
            steps(fp16(fp16_master_weights_and_grads=True), THREE),
        ],
        tmp_path,
    )
    checked, unchecked_runs = runs[:4], runs[4:8]
    assert [(run["finite"], run["skipped"]) for run in checked] == [(True, 1)] * 4
    assert [run["finite"] for run in unchecked_runs] == [True, False, False, True]
    never, high, static, low, both, typo, *ignoring, states, ignored, not_offloaded, fp16_not_offloaded = runs[8:]
    assert (set(never["scales"]), never["skipped"]) == ({65536.0}, 6)
    assert 24 <= high["skipped"] <= 28
    assert (set(static["scales"]), static["skipped"]) == ({65536.0}, 6)
    assert low["scales"] == [1.0, 1.0, 8.0]
    assert low["error"].startswith("Exception: Current loss scale already at minimum")
    assert both["params"] == ["bfloat16"]
    assert typo["params"] == ["float32"]
    assert [run["sent"] for run in ignoring] == [["bfloat16", "float32"]] * 3
    assert (states["masters"], states["states"]) == (["bfloat16"], ["bfloat16"])
    assert (ignored["masters"], ignored["states"]) == (["float32"], ["float32"])
    needs = "AssertionError: Master weights feature requires ZeRO-1 Offload with DeepSpeedCPUAdam"
    assert not_offloaded.startswith(needs)
    assert fp16_not_offloaded.startswith(needs)


def test_deepspeeds_own_parser_takes_everything_that_is_exported(tmp_path: Path) -> None:
    texts: set[str] = set()

    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(plans(), st.sampled_from((0, 1, 2, 3)))
    def collect(plan: Plan, stage: int) -> None:
        try:
            texts.add(exported(plan, stage).text)
        except PlanError:
            return

    collect()
    assert len(texts) > 40
    results = train([{"do": "parse", "config": json.loads(text)} for text in sorted(texts)], tmp_path)
    assert set(results) == {"accepted"}


# What this package refuses, and what DeepSpeed says to it: nothing, or an error of its own.
REFUSED_THERE: list[tuple[dict[str, Any], str]] = [
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "AssertionError: bfloat16 and fp16 modes"),
    ({"fp16": {"enabled": True, "min_loss_scale": 0.25}}, "ValidationError"),
    ({"fp16": {"enabled": True, "loss_scale_window": 0}}, "ValidationError"),
    ({"fp16": {"enabled": True, "opt_level": "O2"}}, "ValidationError"),
    ({"bf16": {"enabled": True, "loss_scale": 0}}, "ValidationError"),
    ({"communication_data_type": "bfloat16"}, "ValueError: Invalid communication_data_type"),
    ({"torch_autocast": {"enabled": True, "dtype": "fp8"}}, "ValueError"),
    ({"amp": {"enabled": True}}, "DeepSpeedConfigError"),
    ({"elasticity": {"enabled": True}}, "DeepSpeedConfigError"),
    ({"data_types": {"keep_in_fp32_modules": "norm"}}, "DeepSpeedConfigError"),
    ({"fp16": {"fp16_master_weights_and_grads": True}}, "AssertionError"),
    ({"bf16": {"bf16_optimizer_states": True}, **zero(1)}, "AssertionError"),
    ({"fp61": {"enabled": True}}, "accepted"),
    ({"data_types": {"grad_acum_dtype": "fp32"}}, "accepted"),
    ({"data_types": {"grad_accum_dtype": "fp64"}}, "accepted"),
    ({"fp16": {"enabled": True, "hysteresis": 0}}, "accepted"),
    ({"fp16": {"enabled": True, "initial_scale_power": 40}}, "accepted"),
    ({"fp16": {"enabled": True, "initial_scale_power": 0, "min_loss_scale": 8}}, "accepted"),
    ({"fp16": {"enabled": "auto"}}, "accepted"),
    ({"fp16": {"enabled": "true"}}, "accepted"),
    ({"gradient_clipping": "auto"}, "accepted"),
]


def test_what_is_refused_here_is_refused_or_silently_accepted_there(tmp_path: Path) -> None:
    cases = [{"do": "parse", "config": {**BATCH, **config}} for config, _ in REFUSED_THERE]
    for (config, begins), said in zip(REFUSED_THERE, train(cases, tmp_path), strict=True):
        assert said.startswith(begins), (config, said)

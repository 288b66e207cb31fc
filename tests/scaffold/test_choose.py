# SPDX-License-Identifier: Apache-2.0
"""What is decided for the answers: precision, batches, remedies, memory, and the reasons told."""

from __future__ import annotations

from typing import Any

import pytest

from floatwise.plan import dumps_plan, loads_plan
from floatwise.scaffold import Answers, choose
from floatwise.scaffold.answers import SIZES, TASKS, TROUBLES
from floatwise.scaffold.memory import StateMemory, state_memory
from floatwise.scaffold.sizes import MODEL_SHAPES

RECIPES = [
    ("nvidia-a100", "none", "bf16-mixed"),
    ("nvidia-t4", "none", "fp16-mixed"),
    ("nvidia-p100", "none", "fp32"),
    ("nvidia-gtx-1660", "none", "fp32"),  # its float16 gives NaN
    ("google-tpu-v4", "none", "bf16-mixed"),
    ("cpu-avx2", "none", "fp32"),
    ("nvidia-a100", "nan", "bf16-mixed"),
    ("nvidia-a100", "slow", "bf16-mixed"),
]


@pytest.mark.parametrize(("device", "trouble", "recipe"), RECIPES)
def test_the_recipe_follows_from_the_devices_units(device: str, trouble: str, recipe: str) -> None:
    framework = "flax" if "tpu" in device else "pytorch"
    plan = choose(Answers(framework=framework, device=device, trouble=trouble)).plan
    assert (plan.recipe, plan.target, plan.script) == (recipe, device, "train.py")
    assert (plan.loss_scale is not None) == (plan.compute_dtype == "float16")


def test_out_of_memory_keeps_the_effective_batch() -> None:
    for task in TASKS:
        for size in SIZES:
            normal = choose(Answers(device="t4", task=task, size=size))
            short = choose(Answers(device="t4", task=task, size=size, trouble="oom"))
            assert short.micro_batch == normal.micro_batch // 4
            assert short.micro_batch * short.accumulation == normal.micro_batch * normal.accumulation
            assert short.checkpoint_activations
            assert not normal.checkpoint_activations


@pytest.mark.parametrize(
    ("device", "master"),
    [("nvidia-a100", ("bf16-master", "split")), ("nvidia-t4", ("fp16-master", "kahan")), ("nvidia-p100", None)],
)
def test_out_of_memory_brings_a_plan_with_16_bit_weights(device: str, master: tuple[str, str] | None) -> None:
    plans = choose(Answers(device=device, trouble="oom")).extra_plans
    made = {name: (plan.recipe, plan.weights.master) for name, plan in plans.items()}
    assert made == ({"precision-master.toml": master} if master else {})
    assert not choose(Answers(device=device)).extra_plans


def test_nan_where_there_is_no_bfloat16_brings_islands_and_a_careful_scale() -> None:
    normal, careful = (choose(Answers(device="t4", trouble=trouble)) for trouble in ("none", "nan"))
    assert [entry.module for entry in careful.plan.islands] == ["head"]
    assert normal.plan.loss_scale is not None
    assert careful.plan.loss_scale is not None
    assert careful.plan.loss_scale.initial_scale == 4096.0 < normal.plan.loss_scale.initial_scale
    assert careful.learning_rate == normal.learning_rate / 2
    assert careful.warmup_steps == normal.warmup_steps * 2
    said = " ".join(reason.en for reason in careful.reasons)
    assert "floatwise plan train.py --target nvidia-t4" in said
    assert "--find-nan" in said


def test_slow_brings_tf32_compilation_and_fusion() -> None:
    slow = choose(Answers(device="a100", trouble="slow", task="image"))
    assert (slow.tf32, slow.compile, slow.fused, slow.channels_last) == (True, True, True, True)
    assert slow.plan.float32_matmul == "tf32"
    assert not choose(Answers(device="a100", trouble="slow", task="text")).channels_last
    assert not choose(Answers(device="t4", trouble="slow")).tf32  # it has no such unit


def test_widths_and_batches_suit_matrix_units() -> None:
    for (task, size), shape in MODEL_SHAPES.items():
        assert shape.width % 32 == 0
        assert shape.batch % shape.micro_batch == 0
        assert shape.batch % 8 == 0, (task, size)


MEMORY: list[tuple[dict[str, Any], StateMemory]] = [
    ({"parallel": "single", "devices": 1}, StateMemory(4000, 4000, 8000)),
    ({"parallel": "ddp", "devices": 4}, StateMemory(4000, 4000, 8000)),
    ({"parallel": "fsdp2", "devices": 4}, StateMemory(1000, 1000, 2000)),
    ({"parallel": "zero1", "devices": 4, "has_deepspeed_copies": True}, StateMemory(2000, 2000, 3000)),
    ({"parallel": "zero2", "devices": 4, "has_deepspeed_copies": True}, StateMemory(2000, 500, 3000)),
    ({"parallel": "zero3", "devices": 4, "has_deepspeed_copies": True}, StateMemory(500, 500, 3000)),
    ({"parallel": "fsdp2", "devices": 3}, StateMemory(1334, 1334, 2667)),  # the last shard is padded
]


@pytest.mark.parametrize(("given", "expected"), MEMORY)
def test_state_memory(given: dict[str, Any], expected: StateMemory) -> None:
    assert state_memory(1000, **given) == expected


def test_a_model_that_does_not_fit_is_told_how_many_devices_it_takes() -> None:
    choices = choose(Answers(device="gtx 1070", size="large", task="text"))  # 8 GiB
    assert choices.memory.total_gib == pytest.approx(15.06, abs=0.05)
    said = " ".join(reason.en for reason in choices.reasons)
    assert "1.01 billion weights" in said
    assert "15.1 GiB on each device of 8 GiB" in said
    assert "--parallel fsdp2 --gpus 3" in said
    assert "10.1 亿个权重" in " ".join(reason.zh for reason in choices.reasons)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("device", ["nvidia-t4", "nvidia-a100", "nvidia-p100"])
def test_plans_are_legal_and_reasons_are_whole(device: str, trouble: str) -> None:
    choices = choose(Answers(device=device, trouble=trouble))
    for plan in (choices.plan, *choices.extra_plans.values()):
        assert loads_plan(dumps_plan(plan)) == plan
    for reason in choices.reasons:
        assert "{" not in reason.en + reason.zh
        assert reason.en.endswith(".")
        assert reason.zh.endswith("。")


def test_sizes_are_what_they_are_called() -> None:
    bounds = {"tiny": (5e4, 2e5), "small": (1e6, 1e7), "medium": (8e7, 1.3e8), "large": (9e8, 1.2e9)}
    for (task, size), shape in MODEL_SHAPES.items():
        low, high = bounds[size]
        assert low <= shape.parameters(task) <= high, (task, size)

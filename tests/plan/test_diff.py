# SPDX-License-Identifier: Apache-2.0
"""Differences between plans: every changed value, the same from both sides, and what it means."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatwise.plan import RECIPES, Change, LossScale, ModulePolicy, Plan, Policy, diff_plans, recipe

_ISLANDS = [
    ModulePolicy(module=glob, policy=Policy(compute_dtype="float32"), reason=reason)
    for glob in ("a.*", 'b"c', "(root)")
    for reason in ("", "why")
]
_MODULES = st.lists(st.sampled_from(_ISLANDS), max_size=3, unique_by=lambda entry: entry.module)
_EVIDENCE = st.sampled_from([{}, {"a": 1}, {"a": {"b.c": 1}}, {"a": {}}, {"a": [1, 2], "d": {"e": {}}}])


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    name = draw(st.sampled_from(sorted(RECIPES)))
    changes: dict[str, Any] = {"modules": draw(_MODULES), "evidence": draw(_EVIDENCE)}
    if name.startswith("fp16"):
        changes["loss_scale"] = LossScale(window_log2=draw(st.none() | st.just((3, 9))))
    return recipe(name, **changes)


@given(_plans(), _plans())
def test_it_is_empty_for_equal_plans_and_symmetrical(a: Plan, b: Plan) -> None:
    changes = diff_plans(a, b)
    assert (not changes) is (a == b)
    swapped = {(c.path, repr(c.after), repr(c.before)) for c in diff_plans(b, a)}
    assert {(c.path, repr(c.before), repr(c.after)) for c in changes} == swapped
    assert all(c.before != c.after for c in changes)
    assert len({c.path for c in changes}) == len(changes)


def test_every_changed_leaf_has_its_path() -> None:
    a = recipe("fp16-mixed", modules=_ISLANDS[:1], evidence={"x.y": {"z": 1}, "same": 1})
    b = recipe(
        "fp16-mixed",
        modules=[_ISLANDS[2], _ISLANDS[1]],
        loss_scale=LossScale(initial_scale=8.0),
        target="t4",
        evidence={"x.y": {"z": 2}, "same": 1},
    )
    assert diff_plans(a, b) == (
        Change("target", "", "t4"),
        Change('modules["a.*"].reason', "", "why"),
        Change('modules["b\\"c"].policy.param_dtype', None, "float32"),
        Change('modules["b\\"c"].policy.compute_dtype', None, "float32"),
        Change('modules["b\\"c"].policy.output_dtype', None, "float32"),
        Change('modules["b\\"c"].reason', None, ""),
        Change("loss_scale.initial_scale", 65536.0, 8.0),
        Change('evidence."x.y".z', 1, 2),
    )


def test_the_order_of_modules_counts() -> None:
    a = recipe("fp16-mixed", modules=[_ISLANDS[0], _ISLANDS[2], _ISLANDS[4]])
    b = recipe("fp16-mixed", modules=[_ISLANDS[2], _ISLANDS[0], _ISLANDS[4]])
    (change,) = diff_plans(a, b)
    assert change == Change("modules", ("a.*", 'b"c', "(root)"), ('b"c', "a.*", "(root)"))
    assert change.meaning is not None


@pytest.mark.parametrize(
    ("change", "english", "chinese"),
    [
        (
            Change("policy.compute_dtype", "float16", "bfloat16"),
            "rounding is 8 times coarser; the largest value grows from 6.55e+04 to 3.39e+38",
            "舍入粗糙 8 倍",
        ),
        (
            Change("policy.param_dtype", "bfloat16", "float32"),
            "bfloat16 -> float32: rounding is 65536 times finer; the largest value is about the same",
            "最大值基本不变",
        ),
        (
            Change("policy.compute_dtype", "float8_e4m3fn", "float8_e4m3fnuz"),
            "e4m3fnuz: rounding stays the same; the largest value shrinks from 448 to 240",
            "最大值由 448 降至 240",
        ),
        (Change("float32_matmul", "ieee", "tf32"), "may use TF32", "TF32"),
        (Change("weights.master", "none", "split"), "16 trailing bits", "低 16 位"),
        (Change("loss_scale.mode", "dynamic", None), "no longer scaled", "不再"),
        (Change("loss_scale.growth", "fixed", "headroom"), "only where gradients leave room", "留有余量"),
        (Change("loss_scale.growth", "headroom", "fixed"), "as PyTorch's does", "与 PyTorch 一致"),
        (Change("loss_scale.initial_scale", 8.0, 16.0), "another loss scale", "不同的损失缩放系数"),
        (
            Change('modules["a"].policy.compute_dtype', None, "float32"),
            "compute in float32",
            "用 float32 计算",
        ),
        (Change('modules["a"].policy.compute_dtype', "float32", None), "as the default says", "默认"),
    ],
)
def test_meaning(change: Change, english: str, chinese: str) -> None:
    text = change.meaning
    assert text is not None
    assert english in text.en
    assert chinese in text.zh
    assert not re.search(r"[{}]", text.en + text.zh)


@pytest.mark.parametrize(
    "change",
    [
        Change("target", "", "t4"),
        Change("evidence.x_dtype", "a", "b"),
        Change("evidence.values", [1], [2]),
        Change("loss_scale.initial_scale", 8.0, None),
        Change("recipe", "fp32", "tf32"),
    ],
)
def test_some_changes_speak_for_themselves(change: Change) -> None:
    assert change.meaning is None


@given(_plans(), _plans())
def test_every_change_can_be_explained_or_left_alone(a: Plan, b: Plan) -> None:
    for change in diff_plans(a, b):
        text = change.meaning
        assert text is None or (text.en and text.zh)

# SPDX-License-Identifier: Apache-2.0
"""Writing plans: the exact text, the exact round trip, and never half a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from floatwise.errors import BadInputError, PlanError
from floatwise.plan import (
    RECIPES,
    LossScale,
    ModulePolicy,
    Plan,
    Policy,
    Weights,
    dumps_plan,
    escape_module,
    load_plan,
    loads_plan,
    recipe,
    save_plan,
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_SCALARS = _TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_EVIDENCE = st.dictionaries(
    _TEXT,
    st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)
_NAMES = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=6)
_GLOBS = st.sampled_from(["", "**", "a.*.b", "层.[0-3]"]) | st.lists(_NAMES, min_size=1, max_size=3).map(
    lambda names: escape_module(".".join(names))
)
_POSITIVE = st.floats(2.0**-126, 2.0**127) | st.sampled_from([1e-30, 2.0**24, 65536.0])


@st.composite
def _loss_scales(draw: st.DrawFn) -> LossScale:
    floor, initial, ceiling = sorted(draw(st.tuples(_POSITIVE, _POSITIVE, _POSITIVE)))
    ends = draw(st.none() | st.tuples(st.integers(-126, 127), st.integers(-126, 127)))
    return LossScale(
        mode=draw(st.sampled_from(["dynamic", "static"])),
        initial_scale=initial,
        growth_factor=draw(st.floats(1, 1e300, exclude_min=True)),
        backoff_factor=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        growth_interval=draw(st.integers(1, 2**31 - 1)),
        growth=draw(st.sampled_from(["headroom", "fixed"])),
        headroom_bits=draw(st.integers(0, 40)),
        hysteresis=draw(st.integers(1, 2**24 - 1)),
        floor=floor,
        ceiling=ceiling,
        window_log2=ends and (min(ends), max(ends)),
    )


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    base = recipe(draw(st.sampled_from(sorted(RECIPES))))
    formats = st.sampled_from(["float32", base.policy.param_dtype])
    globs = draw(st.lists(_GLOBS, max_size=3, unique_by=lambda glob: glob or "(root)"))
    return recipe(
        base.recipe,
        target=draw(_TEXT),
        script=draw(_TEXT),
        modules=[
            ModulePolicy(
                module=glob,
                policy=Policy(param_dtype=draw(formats), compute_dtype="float32"),
                reason=draw(_TEXT),
            )
            for glob in globs
        ],
        loss_scale=draw(_loss_scales()) if base.loss_scale else None,
        evidence=draw(_EVIDENCE),
    )


def _sorted_json(plan: Plan) -> str:
    return json.dumps(json.loads(plan.model_dump_json()), sort_keys=True)


@given(_plans())
@settings(max_examples=150, deadline=None)
def test_the_round_trip_is_exact(plan: Plan) -> None:
    text = dumps_plan(plan)
    read = loads_plan(text)
    assert read == plan
    # Equality takes 1, 1.0 and True for the same; JSON does not.
    assert _sorted_json(read) == _sorted_json(plan)
    assert dumps_plan(read) == text
    text.encode()


@given(_plans())
@settings(max_examples=30, deadline=None)
def test_any_other_writer_of_toml_will_do(plan: Plan) -> None:
    assert loads_plan(tomli_w.dumps(plan.model_dump(exclude_none=True))) == plan


def test_the_text_is_for_a_reader() -> None:
    plan = recipe(
        "fp16-mixed",
        target="t4",
        script="train.py",
        modules=[
            ModulePolicy(
                module="encoder.*.norm",
                policy=Policy(compute_dtype="float32"),
                reason='activations reach 81 000, "past" float16',
            ),
            ModulePolicy(module="head", policy=Policy(compute_dtype="float32")),
        ],
        loss_scale=LossScale(initial_scale=2.0**14, window_log2=(6, 17)),
        evidence={
            "steps": 8,
            "values": [0.5] * 30,
            "rows": [{"role": "weight", "amax": 1e-30}],
            "parity": {"planned": 1.5, "by seed": {"0": 1.25}},
        },
    )
    assert dumps_plan(plan) == (Path(__file__).parent / "expected_plan.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_what_is_absent_is_not_written(name: str) -> None:
    text = dumps_plan(recipe(name))
    assert ("[loss_scale]" in text) is name.startswith("fp16")
    assert ("scaling = " in text) is ("fp8" in name)
    assert "[[modules]]\n" not in text
    assert "[evidence]" not in text
    assert "target" not in text
    assert "None" not in text


def test_every_table_has_a_comment_above_it() -> None:
    lines = dumps_plan(recipe("fp16-mixed", evidence={"a": 1})).splitlines()
    headers = [i for i, line in enumerate(lines) if line.startswith("[")]
    assert len(headers) == 5
    assert all(lines[i - 1].startswith("# ") for i in headers)
    assert "floatwise run --plan" in lines[1]


def test_a_wrong_plan_is_not_written(tmp_path: Path) -> None:
    wrong = recipe("bf16-master").model_copy(update={"weights": Weights()})
    path = tmp_path / "precision.toml"
    save_plan(recipe("fp32"), path)
    with pytest.raises(PlanError, match="updates under half an ulp"):
        save_plan(wrong, path)
    assert load_plan(path) == recipe("fp32")
    assert os.listdir(tmp_path) == ["precision.toml"]


def test_saving_replaces_the_file_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "plän 1.toml"
    save_plan(recipe("fp32"), path)
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o600)
    save_plan(recipe("bf16-mixed"), str(path))
    assert load_plan(path) == recipe("bf16-mixed")
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"\r" not in path.read_bytes()


def test_saving_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").touch()
    link = tmp_path / "link.toml"
    link.symlink_to("real.toml")
    save_plan(recipe("fp32"), link)
    assert link.is_symlink()
    assert load_plan(tmp_path / "real.toml") == recipe("fp32")


def _full_disk(*args: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    path = tmp_path / "precision.toml"
    save_plan(recipe("fp32"), path)
    monkeypatch.setattr(os, function, _full_disk)
    with pytest.raises(BadInputError, match="No space left on device"):
        save_plan(recipe("bf16-mixed"), path)
    assert load_plan(path) == recipe("fp32")
    assert os.listdir(tmp_path) == ["precision.toml"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "name a file in that directory"),
        ("absent/precision.toml", "make the directory first"),
        ("a\0b", "null"),
    ],
)
def test_a_bad_place_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(BadInputError, match="cannot write the plan to") as caught:
        save_plan(recipe("fp32"), f"{tmp_path}/{name}")
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == []

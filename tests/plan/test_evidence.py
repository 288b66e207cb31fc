# SPDX-License-Identifier: Apache-2.0
"""Evidence is copied, frozen, and limited to what both TOML and JSON can write."""

from __future__ import annotations

import copy
import datetime
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from floatwise.errors import PlanError
from floatwise.plan import Plan, recipe

_EVIDENCE = {"steps": 8, "roles": {"weight": {"amax": 1e-30}}, "values": [1, [2.5, True], {"x": "ü"}], "": {}}


def _plan(evidence: Any) -> Plan:
    return recipe("fp32", evidence=evidence)


def test_it_equals_plain_data_and_is_json() -> None:
    plan = _plan(_EVIDENCE)
    assert plan.evidence == _EVIDENCE
    assert json.loads(json.dumps(plan.evidence)) == _EVIDENCE
    assert json.loads(plan.model_dump_json())["evidence"] == _EVIDENCE


def test_it_is_a_copy() -> None:
    values = {"list": [1], "table": {"a": 1}}
    plan = _plan(values)
    values["list"].append(2)  # type: ignore[attr-defined]
    values["table"]["a"] = 2  # type: ignore[index]
    assert plan.evidence == {"list": [1], "table": {"a": 1}}


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(a=1),
        lambda e: e.__setitem__("steps", 9),
        lambda e: e.pop("steps"),
        lambda e: e["roles"]["weight"].clear(),
        lambda e: e["values"].append(1),
        lambda e: e["values"].sort(),
        lambda e: e["values"].__setitem__(0, 1),
        lambda e: e["values"].__iadd__([1]),
        lambda e: e.__ior__({"a": 1}),
        lambda e: e.__delitem__("steps"),
    ],
)
def test_it_cannot_be_changed(change: Callable[[Any], object]) -> None:
    plan = _plan(_EVIDENCE)
    with pytest.raises(TypeError, match="cannot be changed"):
        change(plan.evidence)
    assert plan.evidence == _EVIDENCE


def test_a_plan_with_evidence_hashes_pickles_and_copies() -> None:
    plan = _plan(_EVIDENCE)
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), _plan(_EVIDENCE)):
        assert other == plan
        assert hash(other) == hash(plan)
    with pytest.raises(TypeError, match="cannot be changed"):
        copy.deepcopy(plan).evidence.update(a=1)  # type: ignore[attr-defined]


def _endless() -> dict[str, Any]:
    table: dict[str, Any] = {}
    table["again"] = table
    return table


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "leave the key out"),
        (math.nan, "JSON cannot write"),
        (-math.inf, "use text, such as '-inf'"),
        (2**63, "64 bits"),
        (datetime.date(2020, 1, 1), "expected text, a number"),
        ("\ud800", "lone surrogates"),
        ({1: 2}, "got the key 1"),
        ({"\ud800": 2}, "got the key"),
        (b"x", "bytes"),
        ({1, 2}, "set"),
        (_endless(), "nested more than 32 deep"),
    ],
)
def test_what_cannot_be_written_is_refused(value: object, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        _plan({"table": [0, {"key": value}]})
    assert str(caught.value).startswith("evidence")
    assert message in str(caught.value)


def test_faults_name_their_place_and_come_together() -> None:
    with pytest.raises(PlanError) as caught:
        _plan({"a": {"b.c": [1, math.nan]}, "d": None})
    first, second = str(caught.value).splitlines()
    assert first.startswith('evidence.a."b.c"[1]: got nan')
    assert second.startswith("evidence.d: got None")


def test_it_is_a_table() -> None:
    with pytest.raises(PlanError, match="expected a table"):
        _plan([1])

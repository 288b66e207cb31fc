# SPDX-License-Identifier: Apache-2.0
"""A plan, written for a system and read back, has lost what the exporter said, and nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporters.plans import plans

from floatwise.errors import PlanError
from floatwise.exporters import SYSTEMS, export_plan
from floatwise.exporters.export import Exported
from floatwise.exporters.system import System
from floatwise.plan import Plan, diff_plans

CASES = [(system, form) for system in SYSTEMS.values() for form in system.forms]


def every_option(system: System) -> list[dict[str, Any]]:
    """Returns every combination of the system's options."""
    rows = itertools.product(*([(option.name, choice) for choice in option.choices] for option in system.options))
    return [dict(row) for row in rows]


@pytest.mark.parametrize(("system", "form"), CASES, ids=lambda case: getattr(case, "name", case))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_lost_is_what_was_said(system: System, form: str, data: st.DataObject) -> None:
    plan = data.draw(plans())
    options = data.draw(st.sampled_from(every_option(system)))
    exported = exported_or_none(plan, system, form, options)
    if exported is None:
        return
    changed = [change.path for change in diff_plans(plan, exported.reading.plan)]
    said = [path for note in exported.notes for path in note.fields]
    assert sorted(said) == sorted(changed)
    # Written again, nothing more is lost: what was read is what the system does.
    again = exported_or_none(exported.reading.plan, system, form, options)
    assert again is not None
    assert again.text == exported.text
    assert not any(note.fields for note in again.notes)


def exported_or_none(plan: Plan, system: System, form: str, options: dict[str, Any]) -> Exported | None:
    """Exports for the version whose source was read; None where the system would train the plan wrongly."""
    try:
        return export_plan(plan, system, form=form, options=options, version=system.read_version)
    except PlanError:
        return None

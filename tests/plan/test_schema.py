# SPDX-License-Identifier: Apache-2.0
"""The published JSON Schema is that of the model.

After a change of the model, write it again:
python -c "from floatwise.plan.schema import json_schema_text as t; print(t())" > docs/plan.schema.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floatwise.plan import RECIPES, Plan, json_schema
from floatwise.plan.dtypes import COMPUTE_FORMATS, STORE_FORMATS

_PUBLISHED = Path(__file__).parents[2] / "docs" / "plan.schema.json"


def _plain(schema: Any) -> Any:
    """Undoes the lists of one schema that older versions of pydantic wrap references in."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    (only,) = schema.get("allOf", [{}])
    return {key: _plain(value) for key, value in {**schema, **only}.items() if key != "allOf"}


def test_the_published_schema_is_current() -> None:
    assert json.loads(_PUBLISHED.read_text(encoding="utf-8")) == _plain(json_schema()), __doc__


def test_it_says_what_a_file_must_have() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["schema_version", "recipe", "policy"]
    assert list(schema["properties"]) == list(Plan.model_fields)
    assert schema["properties"]["recipe"]["enum"] == list(RECIPES)
    assert schema["additionalProperties"] is False


def test_it_names_the_formats() -> None:
    policy = json_schema()["$defs"]["Policy"]["properties"]
    assert policy["compute_dtype"]["enum"] == list(COMPUTE_FORMATS)
    assert policy["param_dtype"]["enum"] == list(STORE_FORMATS)


@pytest.mark.parametrize("table", ["Plan", "Policy", "ModulePolicy", "Weights", "LossScale", "Reductions"])
def test_every_key_is_described(table: str) -> None:
    schema: dict[str, Any] = json_schema()
    part = schema if table == "Plan" else schema["$defs"][table]
    assert all(key.get("description") for key in part["properties"].values())
    assert part["additionalProperties"] is False

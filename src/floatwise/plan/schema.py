# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a plan, for editors and for other tools."""

from __future__ import annotations

import json
from typing import Any

from floatwise.plan.model import Plan

__all__ = ["json_schema", "json_schema_text"]


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of the content of a plan file."""
    schema = Plan.model_json_schema()
    # A file must say which version it is; a plan made in Python is of the present one.
    schema["required"] = ["schema_version", *schema["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Floatwise precision plan",
    }


def json_schema_text() -> str:
    """Returns the schema as the text of `docs/plan.schema.json`, without the last newline."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False)

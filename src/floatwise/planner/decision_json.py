# SPDX-License-Identifier: Apache-2.0
"""A decision as the object `floatwise plan --json` prints; null stands where a number is not finite."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from floatwise.planner.decision import (
    Decision,
    Finding,
    Island,
    LossParity,
    LossScaleChoice,
    Measured,
    Predicted,
    RoleRow,
    Verdict,
)
from floatwise.planner.reasons import Reason

__all__ = ["decision_to_json", "json_value"]


def decision_to_json(decision: Decision) -> dict[str, Any]:
    """Returns the decision in lists, dictionaries, strings, booleans and finite numbers only."""
    return {
        "recipe": decision.recipe,
        "target": decision.target,
        "target_name": decision.target_name,
        "here": decision.here,
        "script": decision.script,
        "steps": decision.steps,
        "parameters": decision.parameters,
        "matrix_share": json_value(decision.matrix_share or None),
        "reasons": [_reason(reason) for reason in decision.reasons],
        "loss_scale": _loss_scale(decision.loss_scale),
        "islands": [_island(island) for island in decision.islands],
        "verdicts": {verdict.recipe: _verdict(verdict) for verdict in decision.verdicts},
        "measured": _measured(decision.measured),
        "findings": [_finding(finding) for finding in decision.findings],
        "evidence": [_evidence(row) for row in decision.evidence],
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {"code": reason.code, "text": str(reason), "data": json_value(reason.data)}


def _loss_scale(choice: LossScaleChoice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {
        "window_log2": list(choice.window_log2),
        "initial": json_value(choice.initial),
        "largest": choice.largest,
    }


def _island(island: Island) -> dict[str, Any]:
    return {"module": island.module, "reason": str(island.reason), "code": island.reason.code}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "reasons": [_reason(reason) for reason in verdict.reasons],
        "islands": [_island(island) for island in verdict.islands],
        "loss_scale": _loss_scale(verdict.loss_scale),
        "rehearsal": None if verdict.rehearsal is None else json_value(verdict.rehearsal.to_json()),
        "predicted": _predicted(verdict.predicted),
    }


def _predicted(predicted: Predicted | None) -> dict[str, Any] | None:
    if predicted is None:
        return None
    return {
        "speed": None if predicted.speed is None else json_value(predicted.speed.to_json()),
        "memory": json_value(predicted.memory.to_json()),
        "float32_memory": json_value(predicted.float32_memory.to_json()),
        "memory_ratio": json_value(predicted.memory_ratio),
        "fits": predicted.fits,
    }


def _measured(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    plain = {
        field.name: json_value(getattr(measured, field.name))
        for field in fields(measured)
        if field.name not in ("loss_parity", "products")
    }
    return {
        **plain,
        "loss_parity": _parity(measured.loss_parity),
        "products": None if measured.products is None else json_value(asdict(measured.products)),
    }


def _parity(parity: LossParity | None) -> dict[str, Any] | None:
    return None if parity is None else {field.name: json_value(getattr(parity, field.name)) for field in fields(parity)}


def _finding(finding: Finding) -> dict[str, Any]:
    reason = finding.reason
    return {"severity": finding.severity, "where": finding.where, "code": reason.code, "text": str(reason)}


def _evidence(row: RoleRow) -> dict[str, Any]:
    return {field.name: json_value(getattr(row, field.name)) for field in fields(row)}


def json_value(value: Any) -> Any:
    """Returns `value` in JSON's own types; a number of NumPy becomes Python's, anything else its string."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, (Sequence, frozenset, set)):
        return [
            json_value(entry) for entry in (sorted(value, key=str) if isinstance(value, (frozenset, set)) else value)
        ]
    return str(value)

# SPDX-License-Identifier: Apache-2.0
"""The products of a program, as asked for and as they run: rows that every framework fills. No framework here."""

from __future__ import annotations

from floatwise.census.finding import Finding
from floatwise.census.hlo import compiled_operators
from floatwise.census.operator import Operator, merged
from floatwise.census.products import OperatorCensus

__all__ = ["Finding", "Operator", "OperatorCensus", "compiled_operators", "merged"]

# SPDX-License-Identifier: Apache-2.0
"""The command line: one subcommand per file."""

from __future__ import annotations

from floatwise.cli.app import run

__all__ = ["run"]

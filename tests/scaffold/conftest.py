# SPDX-License-Identifier: Apache-2.0
"""Which tests of projects are part of every run: each project's own test; the rest is `make thorough`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what trains projects beyond their own test: each costs tens of seconds."""
    for item in items:
        if item.path.name.startswith("test_projects_") and not item.name.startswith("test_its_own_test"):
            item.add_marker(pytest.mark.thorough)

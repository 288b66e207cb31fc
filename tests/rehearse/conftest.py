# SPDX-License-Identifier: Apache-2.0
"""As for the runtime: one seed for every test, and CPU autocast left as it was found."""

from __future__ import annotations

from tests.torch.conftest import _seeded_and_clean

__all__ = ["_seeded_and_clean"]

# SPDX-License-Identifier: Apache-2.0
"""Whether what stdout goes to can hold any character."""

from __future__ import annotations

import sys

__all__ = ["can_print_unicode"]


def can_print_unicode() -> bool:
    """False for an ASCII terminal or pipe: JSON is then escaped, which means the same."""
    return (sys.stdout.encoding or "").casefold().replace("-", "") in ("utf8", "utf16", "utf32")

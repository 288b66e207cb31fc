# SPDX-License-Identifier: Apache-2.0
"""Entry of the `floatwise` command and of `python -m floatwise`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line and exits: 0 fine, 1 findings, 2 bad input or environment."""
    if sys.argv[1:] == ["--version"]:
        # Before anything else is imported: version checks run in scripts and must be quick.
        from floatwise._version import __version__

        print(f"floatwise {__version__}")
        return
    from floatwise.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()

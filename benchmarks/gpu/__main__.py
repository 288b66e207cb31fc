# SPDX-License-Identifier: Apache-2.0
"""One command for a machine with a CUDA GPU; see README.md beside this.

    PYTHONPATH=src python -m benchmarks.gpu [--only PART,PART] [--minutes 8] [--output FILE]

It needs torch with CUDA, numpy, pydantic, tomli-w and typing-extensions, not Floatwise installed, and nothing else of
its dependencies; with transformers, two of its models are compared, too. Exit codes: 0 all agrees, 1 something does
not, 2 it could not begin.
"""

from __future__ import annotations

import sys

from benchmarks.gpu.needs import missing


def _main() -> int:
    sentence = missing()
    if sentence is not None:
        print(f"benchmarks.gpu: {sentence}", file=sys.stderr)
        return 2
    from benchmarks.gpu.command import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())

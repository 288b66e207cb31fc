# SPDX-License-Identifier: Apache-2.0
"""A child without a framework: runs the job's script, which speaks to the parent through `channel`.

Run as `python -m tests.tap.stub_child JOB`, so that tests of the parent's end need not wait for torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from floatwise.tap.channel import Channel
from floatwise.tap.job import Job


def main() -> None:
    """Runs the job's script with `job` and `channel` as its names."""
    job = Job.load(sys.argv[1])
    exec(compile(Path(job.script).read_text(), job.script, "exec"), {"job": job, "channel": Channel()})


if __name__ == "__main__":
    main()

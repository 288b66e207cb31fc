# SPDX-License-Identifier: Apache-2.0
"""text_gpt in float32, with autocast written by hand, and unmodified under `floatwise run`, in turn.

python benchmarks/run_vs_autocast.py [--steps 40]
"""

from __future__ import annotations

import argparse

from clock_child import job as clock_job
from turns import ROOT, Runner, in_turn, machine, ratio

from floatwise.plan import dumps_plan, recipe
from floatwise.tap.job import Job

SCRIPT = str(ROOT / "examples" / "text_gpt.py")
BY_HAND = str(ROOT / "benchmarks" / "text_gpt_autocast.py")
OPTIONS = ("--eval-every", "100000", "--steps", "100000")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    plan = Job(
        SCRIPT,
        OPTIONS,
        steps,
        paced=True,
        options={"plan": dumps_plan(recipe("bf16-mixed")), "memory": False},
    )
    runners = {
        "float32": Runner("clock_child", clock_job(SCRIPT, OPTIONS, steps)),
        "floatwise run": Runner("floatwise.torch.script.child", plan),
        "autocast by hand": Runner("clock_child", clock_job(BY_HAND, OPTIONS, steps)),
    }
    in_turn(runners)
    print(machine())
    print(f"{'':18}  steps/s against float32     against autocast by hand   last loss")
    for name, runner in runners.items():
        fast, hand = ratio(runners["float32"], runner), ratio(runners["autocast by hand"], runner)
        print(
            f"{name:18}  {fast[0]:.2f} ({fast[1]:.2f} to {fast[2]:.2f})        "
            f"{hand[0]:.3f} ({hand[1]:.3f} to {hand[2]:.3f})      {runner.losses[-1]:.4f}"
        )


if __name__ == "__main__":
    main()

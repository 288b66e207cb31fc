# SPDX-License-Identifier: Apache-2.0
"""What the probe costs: a plain float32 step, the sampled probe and the full one, in turn.

python benchmarks/probe_cost.py [--steps 30]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from clock_child import job as clock_job
from turns import ROOT, Runner, in_turn, machine, ratio

from floatwise.tap.job import Job

SCRIPTS = {
    "text_gpt": (str(ROOT / "examples" / "text_gpt.py"), ("--eval-every", "100000", "--steps", "100000")),
    "digits_cnn": (str(ROOT / "examples" / "digits_cnn.py"), ("--epochs", "1000")),
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    print(machine())
    print(f"{'':12}  sampled probe / plain step   full probe / plain step")
    with tempfile.TemporaryDirectory() as folder:
        for name, (script, options) in SCRIPTS.items():
            kinds = {False: "sampled", True: "full"}
            runners = {"plain": Runner("clock_child", clock_job(script, options, steps))}
            for full, kind in kinds.items():
                output = str(Path(folder) / f"{name}-{kind}")
                job = Job(script, options, steps, paced=True, output=output, options={"full": full})
                runners[kind] = Runner("probe_child", job)
            in_turn(runners)
            cells = [ratio(runners[kind], runners["plain"]) for kind in kinds.values()]
            print(f"{name:12}  " + "          ".join(f"{m:.2f} ({low:.2f} to {high:.2f})" for m, low, high in cells))


if __name__ == "__main__":
    main()

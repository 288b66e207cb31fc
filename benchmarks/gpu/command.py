# SPDX-License-Identifier: Apache-2.0
"""The command: runs the parts one after another, prints what they find, and keeps the results file up to date."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import PARTS, budget_seconds
from benchmarks.gpu.result import Results

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"

#: Kept back of a part's share, so that it ends by itself before it is stopped.
_MARGIN = 0.1
#: Below this a part is not begun: Python and CUDA take as long to start.
_LEAST_SECONDS = 5.0


class RefusedError(Exception):
    """The run cannot begin; the message says why."""


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Floatwise's rehearsal, predictions, loss scaling and master weights against a real CUDA GPU.",
        epilog="parts: " + "; ".join(f"{name}: {row.about}" for name, row in PARTS.items()),
    )
    parser.add_argument("--only", type=_names, default=list(PARTS), metavar="PART,PART", help="leave out the others")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together; default 8")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu proves the code where no GPU is")
    parser.add_argument("--size", choices=["full", "tiny"], help="default: full on cuda, tiny on a CPU")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="results, .json; default: benchmarks/gpu/results/, named after device and torch; none with --device cpu",
    )
    parser.add_argument("--here", action="store_true", help="all parts in this process, to debug them; no time limits")
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes}: expected more than 0")
    if options.output is not None and options.output.suffix != ".json":
        parser.error(f"--output {options.output}: expected the name of a .json file")
    options.size = options.size or ("full" if options.device == "cuda" else "tiny")
    return options


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected some of {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code: 0 all agrees, 1 something does not, 2 it could not begin."""
    options = _parse(arguments)
    output = options.output or (RESULTS if options.device == "cuda" else None)
    settings = {"parts": options.only, "minutes": options.minutes, "device": options.device, "size": options.size}
    results = Results(output, settings)
    deadline = time.monotonic() + 60 * options.minutes
    for name in PARTS:
        if name not in options.only:
            results.leave_out(name, "not asked for: --only")
    for index, name in enumerate(options.only):
        left = deadline - time.monotonic()
        seconds = budget_seconds(left, options.only[index:])
        if seconds < _LEAST_SECONDS and not options.here:
            results.leave_out(name, f"no time: {seconds:.1f} s would be its share of what is left")
            continue
        print(f"\n{name}: {PARTS[name].about}", flush=True)
        try:
            _run(results, name, options, seconds)
        except RefusedError as why:
            print(f"benchmarks.gpu: {why}", file=sys.stderr)
            return 2
        _conclude(name, results.content["parts"][name])
    results.close()
    return _verdict(results)


def _run(results: Results, name: str, options: argparse.Namespace, seconds: float) -> None:
    results.begin(name, seconds)
    started = time.monotonic()
    if options.here:
        _run_here(results, name, options)
        results.end(name, time.monotonic() - started)
        return
    arguments = ["-m", "benchmarks.gpu.child", name, options.device, options.size, str((1 - _MARGIN) * seconds)]
    paths = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if options.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    stopped = threading.Event()
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    ) as child:

        def stop() -> None:
            stopped.set()
            child.kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            for line in child.stdout or ():
                if line.endswith("\n"):  # else it was stopped while it wrote
                    _take(results, name, json.loads(line))
            code = child.wait()
        finally:
            timer.cancel()
            child.kill()
    if stopped.is_set():
        results.take(name, {"event": "left_out", "value": {"what": "the rest", "why": "stopped: its time was over"}})
    elif code != 0:
        results.take(name, {"event": "error", "value": f"its process ended with code {code}"})
    results.end(name, time.monotonic() - started, "cut" if stopped.is_set() else None)


def _run_here(results: Results, name: str, options: argparse.Namespace) -> None:
    from benchmarks.gpu.child import run_part
    from benchmarks.gpu.machine import machine, no_cuda
    from benchmarks.gpu.part import Part

    def emit(event: dict[str, Any]) -> None:
        _take(results, name, event)

    why = no_cuda() if options.device == "cuda" else None
    if why is not None:
        raise RefusedError(why)
    emit({"event": "machine", "value": machine(options.device)})
    run_part(name, Part(options.device, options.size, float("inf"), emit), emit)


def _take(results: Results, name: str, event: dict[str, Any]) -> None:
    if event["event"] == "refused":
        raise RefusedError(event["value"])
    results.take(name, event)
    if event["event"] == "row":
        print("  " + event["value"]["text"], flush=True)


def _conclude(name: str, record: dict[str, Any]) -> None:
    failed = [check for check in record["checks"] if not check["passed"]]
    for check in failed:
        print(f"  DISAGREES: {check['what']}: {check['detail']}")
    for left_out in record["left_out"]:
        print(f"  left out: {left_out['what']}: {left_out['why']}")
    if record["error"]:
        print(record["error"], file=sys.stderr)
    held = f"{len(record['checks']) - len(failed)} of {len(record['checks'])} checks hold"
    print(f"  {record['status']}: {held}, {record['seconds']:.0f} of {record['budget_seconds']:.0f} s", flush=True)


def _verdict(results: Results) -> int:
    disagreements = results.disagreements
    checks = sum(len(part["checks"]) for part in results.content["parts"].values())
    print(f"\n{checks} checks, {len(disagreements)} disagree" + (f"; {results.path}" if results.path else ""))
    for line in disagreements:
        print(f"  {line.splitlines()[0]}")
    return 1 if disagreements else 0

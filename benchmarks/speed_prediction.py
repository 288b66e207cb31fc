# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured speed of bf16-mixed over float32 on this CPU, from rates measured on it.

One thread, and processor time instead of the clock's: other work on the machine then counts little.

python benchmarks/speed_prediction.py [--steps 12]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from memory_prediction import CASES, Case
from turns import machine

from floatwise.plan import Plan, recipe
from floatwise.rehearse.roofline import predict_speed
from floatwise.rehearse.roofline_here import measured_rates
from floatwise.rehearse.roofline_step import record_step
from floatwise.torch import prepare

PLANNED, FLOAT32 = recipe("bf16-mixed"), recipe("fp32")


def training(case: Case, plan: Plan) -> Callable[[], float]:
    """Returns what trains a step and gives its seconds."""
    torch.manual_seed(0)
    model = case.model()
    precision = prepare(model, case.optimizer(model), plan)
    batch = case.batch()

    def step() -> float:
        started = time.process_time()
        with precision.forward():
            loss = case.loss(model, *batch)
        precision.backward(loss)
        precision.step()
        precision.zero_grad()
        loss.item()
        return time.process_time() - started

    return step


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    rates = measured_rates(clock=time.process_time)
    print(machine())
    products = ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in rates.matrix.items())
    print(
        f"rates: {products}, {rates.bytes_per_second / 1e9:.1f} GB/s, vector {rates.vector / 1e9:.1f} GFLOP/s, "
        f"{1e6 * rates.start_seconds:.1f} µs an operator"
    )
    print(f"{'model':12} predicted  measured   error   predicted s (bf16, float32)   measured s")
    for name, case in CASES.items():
        records = []
        for plan in (PLANNED, FLOAT32):
            with torch.device("meta"):
                model = case.model()
            records.append(record_step(model, case.batch(), case.optimizer(model), plan, loss=case.loss))
        speed = predict_speed(records[0].operators, records[1].operators, rates, PLANNED, FLOAT32)
        runs = training(case, PLANNED), training(case, FLOAT32)
        times = [[run() for run in runs] for _ in range(steps)][2:]
        planned, float32 = (min(column) for column in zip(*times, strict=True))
        ratio = float32 / planned  # of the fastest steps: other work on the machine only ever adds
        print(
            f"{name:12} {speed.ratio:9.2f} {ratio:9.2f} {speed.ratio / ratio - 1:+7.0%}   "
            f"{speed.planned.seconds:8.3f} {speed.float32.seconds:8.3f}           {planned:8.3f} {float32:8.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

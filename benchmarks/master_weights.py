# SPDX-License-Identifier: Apache-2.0
"""Memory and speed side by side: float32, autocast by hand, Floatwise's recipes, other libraries; in turn.

python benchmarks/master_weights.py [--steps N] [--only split accelerate ...] [--sizes text_gpt gpt_100m] [--json FILE]

Every variant trains the same model from the same seed on the same batches with the same fused AdamW, each in a process
of its own, one step of each in turn. Ratios are medians over neighbouring steps, with quartiles. Bytes per parameter
are counted from tensors that live: weights with what is kept beside them and optimizer states after a step, gradients
after a backward, casts of weights when the backward begins. The exit code is 1 when a requirement fails.

float32                     nothing lower
autocast                    torch.autocast around forward and loss, written by hand
bf16-mixed                  floatwise.torch.prepare with that recipe
split, kahan, stochastic    floatwise.torch.prepare with the recipe bf16-master in that mode
accelerate                  Accelerator(mixed_precision="bf16")
fabric-mixed, fabric-true   Fabric(precision="bf16-mixed"), Fabric(precision="bf16-true")
torchao-8bit                autocast, and torchao's AdamW with 8-bit states, which compiles itself at its first step
torchao-8bit-true           the same on bfloat16 weights, stochastically rounded
update                      no training: the optimizer's step alone
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from contest import Contestant, losses_of_seeds, take_turns, train_in_groups
from gpt_sizes import SIZES
from scores import Ratio, SizeScores, score_size, table
from turns import machine, ratio
from update_child import job as update_job
from variant_child import WARM_UP_STEPS
from variants import VARIANTS
from verdicts import Verdict, judge_size, judge_update

from floatwise.errors import ScriptError

#: The size whose loss is judged, and float32's other seeds.
LOSS_SIZE, OTHER_SEEDS = "text_gpt", (1, 2)
#: The update alone: timed steps; matrices, rows and columns.
UPDATE, UPDATE_STEPS, UPDATE_SHAPE = "update", 15, (20, 1000, 1000)


def measure(name: str, variants: Sequence[str], steps: int | None) -> SizeScores:
    """Trains the variants of a size and returns their scores."""
    steps = steps or SIZES[name].steps
    groups = list(train_in_groups(name, variants, steps))
    other_seeds = losses_of_seeds(name, steps, OTHER_SEEDS) if name == LOSS_SIZE else []
    return score_size(groups, steps, other_seeds)


def measure_update(steps: int, shape: tuple[int, int, int]) -> dict[str, Ratio | str]:
    """Returns the time of each way to update against fused AdamW on float32 weights, or why it has none."""
    ways = {
        "fused AdamW": update_job(None, steps, shape),
        "split, kernel": update_job("split", steps, shape),
        "split, plain": update_job("split", steps, shape, kernel=False),
        "kahan, kernel": update_job("kahan", steps, shape),
        "stochastic, kernel": update_job("stochastic", steps, shape),
    }
    runs = {way: Contestant("update_child", job) for way, job in ways.items()}
    take_turns(runs, "the update alone")
    fused = runs.pop("fused AdamW")
    return {way: _update_figure(way, run, fused) for way, run in runs.items()}


def _update_figure(way: str, run: Contestant, fused: Contestant) -> Ratio | str:
    if run.failed or fused.failed:
        raise ScriptError(f"the update alone, {way}: {run.failed or fused.failed}")
    if way.endswith("kernel") and not run.result["kernel"]:
        return "no kernel here: it takes a C compiler to build it"
    return ratio(run, fused)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="training steps of each variant; by default the size's own")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*VARIANTS, UPDATE],
        default=[*VARIANTS, UPDATE],
        metavar="VARIANT",
        help=f"of {', '.join(VARIANTS)}, {UPDATE}; float32 and autocast always train",
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["text_gpt", "gpt_100m"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    arguments = parser.parse_args()
    least = WARM_UP_STEPS + 2
    if arguments.steps is not None and arguments.steps < least:
        parser.error(f"--steps {arguments.steps}: at least {least} are needed, the first {WARM_UP_STEPS} untimed")
    return arguments


def main() -> int:
    """Measures, prints the tables and the verdicts, and returns the exit code."""
    arguments = _parse()
    print(machine())
    figures: dict[str, object] = {"machine": machine()}
    verdicts: list[Verdict] = []
    variants = [name for name in arguments.only if name != UPDATE]
    for name in arguments.sizes if variants else ():
        size = measure(name, variants, arguments.steps)
        print("", *table(name, size), sep="\n", flush=True)
        figures[name] = size.plain()
        verdicts += judge_size(name, size)
    if UPDATE in arguments.only:
        update = measure_update(UPDATE_STEPS, UPDATE_SHAPE)
        print("\nupdate of 20 M parameters, time against fused AdamW on float32 weights")
        for way, found in update.items():
            print(f"{way:19}{found}" if isinstance(found, str) else "{:19}{:.2f} ({:.2f}-{:.2f})".format(way, *found))
        figures[UPDATE] = update
        verdicts += judge_update(update)
    print("", *verdicts, sep="\n")
    figures["verdicts"] = [vars(verdict) for verdict in verdicts]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return int(any(verdict.passed is False for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())

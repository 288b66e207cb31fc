# SPDX-License-Identifier: Apache-2.0
"""Why float16 needs a loss scale: Micikevicius et al. 2018 (arXiv 1710.03740, section 3.2) in small, on a CPU.

A detector answers, for each of 13 x 13 places on a canvas and each of ten digits, whether that digit is there, as SSD
does in the paper. Nearly all answers are no, and the loss is a mean over 432,640 of them, so most of its gradients are
smaller than float16's smallest number. The detector is trained in float32, in float16 without and with the loss scale
that Floatwise plans from a recording of the float32 run, and in bfloat16; 16-bit products are computed as CUDA's matrix
units would. docs/loss-scaling.md tells what comes out.
"""

import argparse
import csv
import math
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from floatwise.formats import get_format
from floatwise.hardware import get_device
from floatwise.plan import LossScale, recipe
from floatwise.planner import decide, record
from floatwise.planner.window import underflow_at
from floatwise.rehearse.baseline import measure_baseline
from floatwise.rehearse.compare import compare, final_loss
from floatwise.rehearse.training import Training
from floatwise.rehearse.trial import rehearse

CANVAS, PLACES, DIGITS = 20, 20 - 8 + 1, 10
BATCH, HIDDEN, LEARNING_RATE = 256, 256, 400.0  # for a mean over 1,690 outputs; 0.24 for their sum
FLOAT32_RUNS = ("float32", "float32_seed_1", "float32_seed_2")


class Detector(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Flatten(),
            nn.Linear(CANVAS**2, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, DIGITS * PLACES**2),
        )
        nn.init.constant_(self[-1].bias, -7.0)  # it begins by saying no, as RetinaNet does (arXiv 1708.02002, 4.1)


class Canvases:
    """Batches of digits at random places, the same for the same seed and number."""

    def __init__(self, seed):
        digits = load_digits()
        self.images = torch.tensor(digits.images / 16.0, dtype=torch.float32)
        self.labels = torch.tensor(digits.target)
        self.seed = seed

    def batch(self, number):
        generator = torch.Generator().manual_seed(self.seed + number)
        chosen = torch.randint(len(self.labels), (BATCH,), generator=generator)
        top, left = torch.randint(PLACES, (2, BATCH), generator=generator)
        rows, pixels = torch.arange(BATCH)[:, None, None], torch.arange(8)
        canvases = torch.zeros(BATCH, CANVAS, CANVAS)
        canvases[rows, (top[:, None] + pixels)[:, :, None], (left[:, None] + pixels)[:, None]] = self.images[chosen]
        answers = torch.zeros(BATCH, DIGITS, PLACES, PLACES)
        answers[torch.arange(BATCH), self.labels[chosen], top, left] = 1.0
        return canvases, answers.flatten(1)


def make_training():
    """Make a detector, its optimizer and the loss of each step, from torch's random state."""
    model, data = Detector(), Canvases(int(torch.randint(2**30, ())))

    def loss(step):
        canvases, answers = data.batch(step)
        return F.binary_cross_entropy_with_logits(model(canvases), answers)

    return Training(model, torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9), loss)


def train(steps):
    """Train in float32, as any script does. This is what Floatwise records."""
    torch.manual_seed(0)
    training = make_training()
    for step in range(steps):
        training.optimizer.zero_grad()
        loss = training.loss(step)
        loss.backward()
        training.optimizer.step()
    print(f"loss {loss.item():.6f}")


def planned_scale(steps):
    """Record the float32 training; return its activation gradients and the loss scale planned for an NVIDIA T4."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder, "detector.recording"))
        recording = record(__file__, ("--train", "--steps", str(steps)), steps, output, lambda what, done, steps: None)
    decision = decide(recording, get_device("nvidia-t4"), here=False, wanted_steps=steps)
    choice = next(verdict.loss_scale for verdict in decision.verdicts if verdict.recipe == "fp16-mixed")
    gradients = recording.role("grad_output")
    return [gradients[site.path] for site in recording.matrix_sites if site.path in gradients], choice


def exponents(gradients, scale_log2):
    """Return, per power of two, the share of all gradients and what float16 makes of it without and with the scale."""
    total = sum(summary.elements for summary in gradients)
    zeros = sum(summary.zeros / summary.seen * summary.elements for summary in gradients) / total
    rows = [("zero", f"{zeros:.3e}", "zero", "zero")]
    for code in range(1, 255):  # float32's exponents, biased by 127
        share = sum(summary.counts[code] / summary.seen * summary.elements for summary in gradients) / total
        if share:
            rows.append((code - 127, f"{share:.3e}", fate(code - 127), fate(code - 127 + scale_log2)))
    return rows


def fate(exponent):
    """Return what float16 makes of magnitudes from 2**exponent up to twice that."""
    float16 = get_format("float16")
    if 2.0 ** (exponent + 1) <= float16.flush_threshold:
        return "zero"
    if exponent < float16.min_exponent:
        return "subnormal"
    return "normal" if exponent <= float16.max_exponent else "infinite"


def write_csv(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def experiment(steps, folder):
    gradients, choice = planned_scale(steps)
    scale_log2 = round(math.log2(choice.initial))
    low, high = choice.window_log2
    print(f"planned loss scale: 2^{scale_log2}; nothing is lost from 2^{low} to 2^{high}")
    for name, exponent in (("without it", 0), ("with it", scale_log2)):
        print(f"activation gradients that float16 makes zero {name}: {underflow_at(gradients, exponent):.1%}")

    scaled = LossScale(initial_scale=choice.initial, window_log2=choice.window_log2)
    plans = {
        "float16": recipe("fp16-mixed", loss_scale=LossScale(mode="static", initial_scale=1.0)),
        "float16_scaled": recipe("fp16-mixed", loss_scale=scaled),
        "bfloat16": recipe("bf16-mixed"),
    }
    baseline = measure_baseline(make_training, steps)
    losses = dict(zip(FLOAT32_RUNS, [baseline.losses, *baseline.other_losses], strict=True))
    print(f"\n{'':16}final loss")
    for name, run in losses.items():
        print(f"{name:16}{final_loss(run):10.6f}")
    for name, plan in plans.items():
        trial = rehearse(make_training, plan, steps, known=baseline.known, true_amax=baseline.trial.start.amax)
        comparison = compare(baseline, trial)
        losses[name] = trial.trained.losses
        true, seen = comparison.final_losses
        print(f"{name:16}{seen:10.6f}  {abs(seen - true):.6f} from float32, {comparison.tolerance:.6f} allowed")
        for problem in comparison.problems:
            print(f"{'':28}{problem}")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_csv(folder / "losses.csv", ("step", *losses), zip(range(steps), *losses.values(), strict=True))
        header = ("exponent", "share", "float16", "float16_scaled")
        write_csv(folder / "gradients.csv", header, exponents(gradients, scale_log2))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, help="folder for the plot data, losses.csv and gradients.csv")
    parser.add_argument("--train", action="store_true", help="only train in float32, without Floatwise")
    args = parser.parse_args()
    torch.set_num_threads(1)  # sums are added up in one order, however many cores there are
    if args.train:
        train(args.steps)
    else:
        experiment(args.steps, args.output)


if __name__ == "__main__":
    main()

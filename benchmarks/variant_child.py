# SPDX-License-Identifier: Apache-2.0
"""The child that trains one variant, an iteration at a time, and measures its memory before it is timed."""

from __future__ import annotations

import warnings
from typing import Any

from gpt_sizes import SIZES, Batches
from paced import serve
from tensor_bytes import Census, WeightCopies
from variants import VARIANTS

from floatwise.tap.job import Job
from floatwise.torch.script.peak_memory import PeakMemoryMeter

__all__ = ["WARM_UP_STEPS", "VariantRun", "job"]

#: Steps that are not timed: the first makes states, the second working memory and is counted; then memory is watched
#: for two.
WARM_UP_STEPS = 4


def job(variant: str, size: str, steps: int, *, seed: int = 0, memory: bool = True) -> Job:
    """Returns the job of training a variant of a model of some size."""
    options = {"variant": variant, "size": size, "memory": memory}
    return Job("", steps=steps, seed=seed, paced=True, options=options)


class VariantRun:
    """A variant in training. The first steps count and watch memory; only those after them are timed."""

    warm_up = WARM_UP_STEPS

    def __init__(self, job: Job) -> None:
        warnings.simplefilter("ignore")  # the variants' own libraries have much to say
        size = SIZES[job.options["size"]]
        self.memory = job.options["memory"]
        self.batches = Batches(size, job.seed)
        self.model = size.model(job.seed)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.census = Census()
        self.training = VARIANTS[job.options["variant"]](self.model, size.learning_rate, job.steps)
        self.meter = PeakMemoryMeter()

    def iteration(self, index: int) -> float:
        """Trains one step and returns its loss."""
        if not self.memory:
            return self._step()
        if index == 1:
            return self._counted_step()
        if index == 2:
            self.meter.begin()
        elif index == 3:
            self.meter.mark()
        loss = self._step()
        if index == 3:
            self.meter.end()
        return loss

    def result(self) -> dict[str, Any]:
        """Returns what was measured beside times and losses."""
        return {
            "parameters": self.parameters,
            "peak_bytes": self.meter.peak_bytes,
            "bytes_per_parameter": self.census.per_parameter(self.parameters),
            "other_bytes": self.census.other,
        }

    def _step(self) -> float:
        loss = self.training.forward(self.batches.draw())
        self.training.backward(loss)
        self.training.update()
        return loss.item()

    def _counted_step(self) -> float:
        batch = self.batches.draw()
        with WeightCopies(self.model) as copies:
            loss = self.training.forward(batch)
        self.census.before_backward(copies)
        self.training.backward(loss)
        self.census.after_backward(self.model)
        self.training.update()
        value = loss.item()
        del loss
        self.census.after_step(self.model, self.training.optimizer, batch)
        return value


if __name__ == "__main__":
    serve(VariantRun)

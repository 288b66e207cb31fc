# SPDX-License-Identifier: Apache-2.0
"""The child that records: runs a script in float32 under the probe and writes the recording."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from floatwise.probe.matrix_share import MatrixShareMeter
from floatwise.probe.observer import Probe
from floatwise.probe.recording import Recording, save_recording
from floatwise.tap.child import ScriptChild, main
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer
from floatwise.tap.existing import ExistingPrecision

__all__ = ["CHILD"]

#: Iteration that is timed by operator instead of probed: the first two pay for warm-up.
_TIMED_ITERATION = 2
_PACKAGES = ("torch", "transformers", "accelerate", "lightning", "deepspeed")


class _RaisedInputs(Observer):
    """Hands over in float32 what comes to a model in 16 bits, as do the weights of a model that has such."""

    existing: ExistingPrecision | None = None

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        return (args, kwargs) if self.existing is None else self.existing.raise_inputs(root, args, kwargs)


class RecordingChild(ScriptChild):
    """Options: `full`, look at every element."""

    module = "floatwise.probe.child"

    @override
    def observers(self) -> list[Observer]:
        self.raised = _RaisedInputs()
        self.probe = Probe(self.paths.of, full=bool(self.job.options.get("full")))
        self.share = MatrixShareMeter()
        self.losses: list[float] = []
        return [self.raised, self.probe]

    @override
    def existing(self, tap: Tap) -> ExistingPrecision:
        self.share.install(tap.patches)
        self.raised.existing = ExistingPrecision(tap, compute_dtype=None, compiles=False)
        return self.raised.existing

    @override
    def iteration_ended(self, index: int, loss: float) -> None:
        if index == _TIMED_ITERATION:
            self.share.stop()
            self.probe.active = True
        else:
            self.probe.end_iteration()
        self.losses.append(loss)
        if self.speaks:
            self.channel.send("step", index=index, loss=loss)
        if index + 1 == _TIMED_ITERATION and self.job.steps > _TIMED_ITERATION + 1:
            self.probe.active = False
            self.share.start()

    @override
    def finish(self) -> dict[str, Any]:
        recording = self._recording()
        save_recording(recording, self.job.output)
        return {"steps": recording.steps, "parameters": recording.parameters}

    def _recording(self) -> Recording:
        self.share.stop()
        self.probe.end_iteration()
        parameters = [p for _, p in self.probe.parameters]
        dtypes = [str(p.dtype).removeprefix("torch.") for p in parameters]
        probed = self.clock.iterations - (1 if self.share.share is not None else 0)
        return Recording(
            script=self.job.script,
            arguments=self.job.arguments,
            steps=self.clock.iterations,
            device=_device_name(parameters),
            parameters=sum(p.numel() for p in parameters),
            parameter_dtype=max(dtypes, key=dtypes.count) if dtypes else "float32",
            optimizers=tuple(sorted(self.clock.optimizers)),
            losses=tuple(self.losses),
            matrix_share=self.share.share or 0.0,
            sites=self.probe.sites(probed),
            found=tuple((f.kind, f.where, f.detail) for f in self.notes.all_found),
            summaries=self.probe.collector.summaries(),
            stalls=self.probe.updates.stalls(),
            versions={name: v for name in _PACKAGES if (v := _version(name))},
        )


def _device_name(parameters: list[torch.Tensor]) -> str:
    device = parameters[0].device if parameters else torch.device("cpu")
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


CHILD = RecordingChild

if __name__ == "__main__":
    main(CHILD)

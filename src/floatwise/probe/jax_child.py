# SPDX-License-Identifier: Apache-2.0
"""The child that records a JAX script: runs it in float32 and writes the recording."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Hashable
from importlib import metadata
from typing import Any

import jax
from typing_extensions import override

from floatwise.jax.script.gradient_tap import GradientTap
from floatwise.probe.jax_recorder import JaxRecorder
from floatwise.probe.recording import Recording, save_recording
from floatwise.probe.value_log import ValueLog
from floatwise.tap.execute import shift_seeds
from floatwise.tap.frames import last_users_line
from floatwise.tap.plain_child import PlainChild, main
from floatwise.tap.stop import stop_process

__all__ = ["CHILD", "recorded", "versions"]

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "equinox", "dm-haiku", "keras")
#: How long nothing more must have come from the last iteration before it counts as over. Its gradients are the last
#: that a program computes but for the update, so what is still on its way takes milliseconds.
_QUIET_SECONDS = 0.3


class JaxRecordingChild(PlainChild):
    """Options: `full`, look at every element.

    An iteration is one gradient of the main function, as far as values are seen: those of the last may come after
    its loss, in threads of JAX's, so the process ends when nothing more comes, the next gradient does, or the script
    has ended.
    """

    module = "floatwise.probe.jax_child"

    @override
    def prepare(self) -> None:
        self.losses: list[float] = []
        self._is_over = threading.Event()
        self._finishing = threading.Lock()
        self._last_value = 0.0
        self.log = _WatchedLog(bool(self.job.options.get("full")), self._value_came)
        self.recorder = JaxRecorder(self.log, self._gradient_came, self.found, self._gave_up)
        self.tap = GradientTap(self.patches, self.recorder)
        self._untraceable, self._calls_back = "", False
        if self.job.seed_offset:
            for name in ("key", "PRNGKey"):
                shift_seeds(self.patches, jax.random, name, self.job.seed_offset)

    @override
    def iteration_ended(self, index: int, loss: float) -> None:
        self.recorder.end_iteration()
        self.losses.append(loss)
        self.channel.send("step", index=index, loss=loss)

    @override
    def finish(self) -> dict[str, Any]:
        self.recorder.active = False
        recording = recorded(
            self.recorder,
            self.log,
            script=self.job.script,
            arguments=self.job.arguments,
            losses=self.losses,
            found=tuple((found.kind, found.where, found.detail) for found in self.all_found),
        )
        save_recording(recording, self.job.output)
        return {"steps": recording.steps, "parameters": recording.parameters}

    @override
    def never_stepped(self) -> str:
        if self.tap.calls:
            return (
                f"{self.job.script}: {self.tap.calls} gradients were traced, but none was computed; take at least one "
                "training step: call the function that takes the gradient"
            )
        return (
            f"{self.job.script}: jax.grad and jax.value_and_grad were never called, nor what is built on them in Flax, "
            "Equinox, Haiku and Keras; take the gradients with one of these (jax.vjp, jax.jacrev and jax.linearize "
            "cannot be told from other uses), or record a step function: floatwise.jax.probe(step, *args)"
        )

    @override
    def settle(self) -> None:
        jax.effects_barrier()  # type: ignore[no-untyped-call]
        if self._is_over.is_set():
            self.done()

    @override
    def done(self) -> None:
        with self._finishing:
            if self._untraceable and not any(site.matrix for site in self.recorder.sites(1)):
                self.channel.send("failed", message=self._could_not_look(), traceback="")
                stop_process()
            super().done()

    @override
    def _iteration(self, index: int, loss: float) -> None:
        self.iteration_ended(index, loss)
        if index + 1 >= self.job.steps:
            self.recorder.is_over = True
            self._is_over.set()
            threading.Thread(target=self._finish_when_quiet, daemon=True).start()

    def _could_not_look(self) -> str:
        if self._calls_back:
            return (
                f"{self._untraceable}: the loss function cannot be computed a second time to see the values inside, "
                "since it has effects (io_callback) or steps without a derivative; take these out of it for planning"
            )
        return (
            f"{self._untraceable}: the loss function cannot be traced by JAX, so the values inside were not seen: it "
            "branches in Python on values, or turns them into Python or NumPy numbers; use jax.lax.cond or jnp.where, "
            "and return numbers to log as auxiliary data (has_aux=True): it must work under jax.jit"
        )

    def _gradient_came(self, key: Hashable, loss: float) -> None:
        if self._is_over.is_set():
            self.done()
        self.stepped(key, loss)

    def _finish_when_quiet(self) -> None:
        while time.monotonic() - self._last_value < _QUIET_SECONDS:
            time.sleep(_QUIET_SECONDS / 10)
        self.done()

    def _value_came(self) -> None:
        self._last_value = time.monotonic()

    def _gave_up(self, error: Exception) -> None:
        self._untraceable = last_users_line(error.__traceback__) or self.job.script
        self._calls_back = isinstance(error, NotImplementedError)


class _WatchedLog(ValueLog):
    """A log that tells when a value has come."""

    def __init__(self, full: bool, came: Any) -> None:
        super().__init__(full)
        self._came = came

    @override
    def add(self, path: str, role: str, sample: Any, elements: int, amax: float) -> None:
        super().add(path, role, sample, elements, amax)
        self._came()


def recorded(
    recorder: JaxRecorder,
    log: ValueLog,
    *,
    script: str,
    arguments: tuple[str, ...],
    losses: list[float],
    found: tuple[tuple[str, str, str], ...],
) -> Recording:
    """Returns what was recorded so far, one iteration for each loss."""
    sizes = [count for count, _ in recorder.parameters.values()]
    dtypes = [dtype for _, dtype in recorder.parameters.values()]
    return Recording(
        script=script,
        arguments=arguments,
        steps=len(losses),
        device=_device_name(),
        parameters=sum(sizes),
        parameter_dtype=max(dtypes, key=dtypes.count) if dtypes else "float32",
        optimizers=("optax",) if "optax" in sys.modules else (),
        losses=tuple(losses),
        matrix_share=0.0,
        sites=recorder.sites(len(losses)),
        found=found,
        summaries=log.summaries(),
        stalls=log.stalls(),
        versions=versions(),
        framework="jax",
        backend="",
    )


def versions() -> dict[str, str]:
    """Returns the versions of JAX and of what is built on it here, by package."""
    return {name: version for name in _PACKAGES if (version := _version(name))}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _device_name() -> str:
    device = jax.devices()[0]
    return str(device.device_kind) if device.platform in ("gpu", "tpu") else str(device.platform)


CHILD = JaxRecordingChild

if __name__ == "__main__":
    main(CHILD)

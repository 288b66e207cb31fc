# SPDX-License-Identifier: Apache-2.0
"""The child that records a Keras script: runs it in float32 on its backend and writes the recording."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

from typing_extensions import override

from floatwise.errors import ScriptError
from floatwise.keras.script.importing import when_imported
from floatwise.keras.script.iterations import Iterations
from floatwise.keras.script.seeds import seed_keras
from floatwise.probe.keras_sites import Sites
from floatwise.probe.recording import Recording, save_recording
from floatwise.probe.value_log import ValueLog
from floatwise.tap.frames import users_line
from floatwise.tap.plain_child import PlainChild, main

__all__ = ["CHILD"]

_PACKAGES = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}
_KERAS_2 = (
    "this script trains with Keras 2 (tf_keras, or TF_USE_LEGACY_KERAS=1), which Floatwise does not record; it records "
    "Keras 3 on TensorFlow, JAX and PyTorch. Import keras, or tensorflow.keras without TF_USE_LEGACY_KERAS; most "
    "Keras 2 scripts run unchanged"
)


class RecordingChild(PlainChild):
    """Options: `full`, look at every element."""

    module = "floatwise.probe.keras_child"

    @override
    def prepare(self) -> None:
        self.losses: list[float] = []
        self.backend = ""
        self.updates: Any = None
        self.log = ValueLog(full=bool(self.job.options.get("full")))
        self.sites = Sites(self.log)
        seed_keras(self.patches, self.job.seed, self.job.seed_offset)
        when_imported(self.patches, "tf_keras", self._refuse_keras_2)
        when_imported(self.patches, "keras", self._install)
        self.iterations = Iterations(self.patches, self.stepped)  # installs after what is heard within

    @override
    def iteration_ended(self, index: int, loss: float) -> None:
        if self.updates is not None:
            self.updates.end_iteration()
        self.losses.append(loss)
        self.channel.send("step", index=index, loss=loss)

    @override
    def finish(self) -> dict[str, Any]:
        recording = self._recording()
        save_recording(recording, self.job.output)
        return {"steps": recording.steps, "parameters": recording.parameters}

    @override
    def never_stepped(self) -> str:
        script = self.job.script
        if not self.backend:
            return f"{script} ended without importing Keras; give the script that trains: floatwise plan SCRIPT"
        models = self.iterations.model_names
        if not models:
            return (
                f"{script} ended without a training step and without a Keras model; give the script that trains, or "
                "the arguments that make it train: floatwise plan SCRIPT ARGUMENTS"
            )
        return (
            f"{script} made a model ({', '.join(models[:3])}) but took no training step: fit, train_on_batch and an "
            "optimizer's apply, apply_gradients and stateless_apply count as steps, and none was called. Does it train "
            "only under a condition (a flag, a checkpoint that is there already)? Give its arguments after the script"
        )

    def _install(self) -> None:
        import keras

        if not keras.__version__.startswith("3"):
            raise ScriptError(_KERAS_2)
        from floatwise.probe.keras_float32 import train_in_float32
        from floatwise.probe.keras_frames import Frames
        from floatwise.probe.keras_layers import watch_layers
        from floatwise.probe.keras_paths import Paths
        from floatwise.probe.keras_products import watch_operators
        from floatwise.probe.keras_updates import UpdateWatch
        from floatwise.probe.keras_watching import make_watcher

        self.backend = keras.backend.backend()
        train_in_float32(self.patches, self.found, self.backend)
        if self.backend != "jax":
            self.patches.replace(keras.Model, "make_train_function", self._uncompiled)
        watcher = make_watcher(self.backend, self.patches, self.log.sampled)
        paths = Paths()
        frames = Frames(watcher, self.sites, paths)
        watch_layers(self.patches, frames)
        watch_operators(self.patches, frames, self.backend)
        self.updates = UpdateWatch(self.patches, watcher, self.sites, paths, frames.forget)
        if self.backend == "torch":
            self._watch_torch_optimizers()

    def _uncompiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """XLA calls nothing back, and torch.compile changes what is seen: the train step runs without them."""

        @functools.wraps(original)
        def make_train_function(model: Any, force: bool = False) -> Any:
            if model.jit_compile:
                self.found("found_compile", users_line() or "", "jit_compile=True")
                model._jit_compile = False
            return original(model, force)

        return make_train_function

    def _watch_torch_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self.updates.stepping((p, p.detach(), p.grad) for p in parameters)

        self.patches.on_undo(register_optimizer_step_pre_hook(before).remove)

    def _refuse_keras_2(self) -> None:
        tf_keras: Any = importlib.import_module("tf_keras")

        def refuse(original: Any) -> Any:
            def make_train_function(*args: Any, **kwargs: Any) -> Any:
                raise ScriptError(_KERAS_2)

            return make_train_function

        self.patches.replace(tf_keras.Model, "make_train_function", refuse)
        self.patches.replace(tf_keras.optimizers.Optimizer, "apply_gradients", refuse)

    def _recording(self) -> Recording:
        sizes = self.updates.sizes
        return Recording(
            script=self.job.script,
            arguments=self.job.arguments,
            steps=self.count.iterations,
            device=_device_name(self.backend),
            parameters=sum(sizes.values()),
            parameter_dtype="float32",
            optimizers=tuple(sorted(self.iterations.optimizers)),
            losses=tuple(self.losses),
            matrix_share=0.0,
            sites=self.sites.sites(self.count.iterations),
            found=tuple((f.kind, f.where, f.detail) for f in self.all_found),
            summaries=self.log.summaries(),
            stalls=self.log.stalls(),
            versions=_versions(self.backend),
            framework="keras",
            backend=self.backend,
        )


def _device_name(backend: str) -> str:
    """Returns the name of the first GPU that the backend computes on, or `cpu`."""
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    if backend == "jax":
        import jax

        device = jax.devices()[0]
        return "cpu" if device.platform == "cpu" else str(device.device_kind)
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")) if gpus else "cpu"


def _versions(backend: str) -> dict[str, str]:
    names = {"keras": "keras", "numpy": "numpy", **({backend: _PACKAGES[backend]} if backend in _PACKAGES else {})}
    if backend == "jax":
        names["jaxlib"] = "jaxlib"
    return {name: version for name in names if (version := _version(name))}


def _version(package: str) -> str:
    for name in (package, f"{package}-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


CHILD = RecordingChild

if __name__ == "__main__":
    main(CHILD)

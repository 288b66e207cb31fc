# SPDX-License-Identifier: Apache-2.0
"""A plan applied to a Keras script that knows nothing of it: to each model when it begins to train."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from floatwise.errors import PlanError
from floatwise.keras.plan_support import check_plan
from floatwise.keras.script.calls import in_float32, is_symbolic, trains
from floatwise.keras.script.importing import when_imported
from floatwise.keras.script.step_census import StepCensus
from floatwise.plan import Plan
from floatwise.tap.patches import Patches

__all__ = ["AppliedPlan"]

Tell = Callable[[str, str, str], None]


class AppliedPlan:
    """Trains a script's Keras models under a plan, on every backend, in `fit` and in loops of the script's own.

    - A model gets its policies when its train function is made, or when it is first called to train: as an outermost
      model, with `training=True`, under a tape, or (torch) with gradients enabled.
    - Outputs of outermost models are handed back in float32, unless the plan says otherwise.
    - With float16 a model that trains by Keras' own `train_step` has a `LossScaleOptimizer`; for all else gradients
      are those of a scaled loss and unscaled when the script gets them. On JAX such a loop is an error.

    Args:
      plan: The plan.
      tell: Gets the kind, the place and what of the script's own precision the plan replaces, each once.

    Raises:
      PlanError: Keras cannot be told the plan.
    """

    def __init__(self, plan: Plan, tell: Tell) -> None:
        self.plan = check_plan(plan)
        self.tell = tell
        self.unmatched = [entry.module for entry in plan.modules]
        policies = (plan.policy, *(entry.policy for entry in plan.modules))
        self.uses_float16 = any(policy.compute_dtype == "float16" for policy in policies)
        self.census = StepCensus()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._covered: weakref.WeakSet[Any] = weakref.WeakSet()
        self._newest: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._scale: Any = None
        self._local = threading.local()
        self._patches = Patches()

    def install(self, patches: Patches) -> None:
        """Waits for the script to import Keras; nothing is imported here.

        What counts iterations must be installed after this: steps are skipped inside of what it counts.
        """
        self._patches = patches
        when_imported(patches, "keras", self._install)

    @property
    def has_models(self) -> bool:
        """Whether any model has been trained under the plan."""
        return bool(self._models)

    # -- what happened --------------------------------------------------------------------------------------------

    @property
    def skipped_steps(self) -> int:
        """Steps that were skipped for gradients that were not finite. Waits for the device."""
        skipped = sum(int(memory.skipped_steps) for memory, _ in self._states())
        return skipped + (self._scale.skipped_steps if self._scale is not None else 0)

    @property
    def loss_scale(self) -> float | None:
        """The loss scale now, the smallest of several; None when no loss was scaled. Waits for the device."""
        scales = [scale for _, scale in self._states()]
        own = self._scale.scale if self._scale is not None else None
        return min([*scales, *([] if own is None else [own])], default=None)

    def _states(self) -> Iterator[tuple[Any, float]]:
        """Yields the memory and scale of each model's optimizer: of the last step, also on JAX within an epoch."""
        from keras import ops

        from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer
        from floatwise.keras.scale_moves import Memory

        for model in list(self._models):
            optimizer = getattr(model, "optimizer", None)
            if isinstance(optimizer, LossScaleOptimizer) and optimizer.built:
                newest = self._newest.get(model) or [v.value for v in optimizer.variables]
                values = {id(v): value for v, value in zip(optimizer.variables, newest, strict=True)}
                memory = ops.convert_to_numpy(values[id(optimizer.scale_memory)]).tolist()
                yield Memory(*memory), float(ops.convert_to_numpy(values[id(optimizer.dynamic_scale)]))

    # -- replacing ------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        import keras

        if not keras.__version__.startswith("3"):
            return
        from floatwise.keras.products import set_float32_products
        from floatwise.keras.script.portable import keep_files_portable
        from floatwise.keras.script.replaced import replace_policies

        replace_policies(self._patches, self.tell)
        set_float32_products(self.plan)
        keep_files_portable(self._patches)
        if self.uses_float16:
            self._install_scaling(keras.backend.backend())
        self._patches.replace(keras.Model, "__call__", self._calling)
        self._patches.replace(keras.layers.Layer, "add_loss", _adding_float32)
        trainer = next(base for base in keras.Model.__mro__ if "make_train_function" in vars(base))
        self._patches.replace(trainer, "make_train_function", self._making)
        if keras.backend.backend() == "jax":
            self._patches.replace(keras.Model, "stateless_call", self._calling_stateless)

    def _install_scaling(self, backend: str) -> None:
        from floatwise.keras.script.optimizers import skip_bad_steps
        from floatwise.keras.script.run_scale import RunScale
        from floatwise.plan import LossScale

        self._scale = scale = RunScale(self.plan.loss_scale or LossScale())
        if backend == "tensorflow":
            from floatwise.keras.script.scaled_tensorflow import scale_gradients

            scale_gradients(self._patches, scale, self._is_scaling)
        elif backend == "torch":
            from floatwise.keras.script import scaled_torch

            scaled_torch.scale_gradients(self._patches, scale, self._is_scaling, self._parameters)
        skip_bad_steps(self._patches, scale, self._is_scaling, self.tell)

    def _is_scaling(self) -> bool:
        return bool(self._models)

    def _parameters(self) -> Iterator[Any]:
        found = {id(v): v.value for model in list(self._models) for v in model.trainable_variables}
        return iter(found.values())

    # -- models ---------------------------------------------------------------------------------------------------

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make_train_function(model: Any, force: bool = False) -> Any:
            if self.uses_float16:
                _refuse_replicas(model)
            if model.train_function is None or force or model not in self._covered:
                # A step of the script's own may train other models than this one: they are met when they are called.
                # On JAX the loss scale must be in the optimizer's state before the step is traced.
                is_needed = _has_stock_step(model) or (self.uses_float16 and _is_jax())
                if is_needed and all(layer.built for layer in model._flatten_layers()):
                    self._apply(model)
                    _build_optimizer(model)
            before = model.train_function
            result = original(model, force)
            if self.uses_float16 and _is_jax() and model.train_function is not before:
                model.train_function = self._keeping_state(model, model.train_function)
            return result

        return make_train_function

    def _keeping_state(self, model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Keeps the optimizer's state of the last step, which Keras brings into variables when an epoch ends."""
        known = weakref.ref(model)

        @functools.wraps(function)
        def train_function(*args: Any) -> Any:
            logs, state = function(*args)
            if (owner := known()) is not None:
                self._newest[owner] = list(state[2])
            return logs, state

        return train_function

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._local, "inside", False) or is_symbolic(args, kwargs):
                return original(model, *args, **kwargs)
            if model not in self._covered and trains(kwargs.get("training")):
                self._build_and_apply(model, args, kwargs)
            return self._call(original, model, args, kwargs, args[0] if args else None)

        return call

    def _calling_stateless(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def stateless_call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._local, "inside", False) or is_symbolic((), {}):
                return original(model, *args, **kwargs)
            if model not in self._covered and model.built and kwargs.get("training") is not False:
                self._build_and_apply(model, (), {})
            return self._call(original, model, args, kwargs, args[2] if len(args) > 2 else None)

        return stateless_call

    def _call(self, original: Callable[..., Any], model: Any, args: Any, kwargs: Any, inputs: Any) -> Any:
        if inputs is not None and model in self._covered:
            self.census.note(model, inputs)
        self._local.inside = True
        try:
            outputs = original(model, *args, **kwargs)
        finally:
            self._local.inside = False
        if model in self._covered and self.plan.policy.output_dtype == "float32":
            return in_float32(outputs)
        return outputs

    def _build_and_apply(self, model: Any, args: Any, kwargs: Any) -> None:
        import keras

        from floatwise.keras.script.tracing import outside_traces

        if args and not all(layer.built for layer in model._flatten_layers()):
            keras.src.backend.compute_output_spec(model, *args, **kwargs)
        kept = model.train_function  # is being traced now
        with outside_traces():
            self._apply(model)
        model.train_function = kept

    def _apply(self, model: Any) -> None:
        from floatwise.keras.applying import apply
        from floatwise.keras.layer_paths import layer_paths, unmatched_globs
        from floatwise.keras.wrapping import keep_scaling, set_optimizer, unwrapped

        is_new = model not in self._covered
        paths = layer_paths(model)
        had = {path: layer.dtype_policy for path, layer in paths.items()}
        optimizer = getattr(model, "optimizer", None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the plan's module")
            apply(model, self.plan)
        if is_new:
            self._tell_of(model, had, paths, optimizer)
        # A script's models come one by one: a glob is unmatched when no model has a layer for it.
        missing = unmatched_globs(self.plan, paths)
        self.unmatched = [glob for glob in self.unmatched if glob in missing]
        self._models.add(model)
        for layer in paths.values():
            self._covered.add(layer)
        if self.uses_float16 and not _is_jax() and not _has_stock_step(model):
            keep_scaling(model, None)
            if getattr(model, "optimizer", None) is not None:
                set_optimizer(model, unwrapped(model.optimizer))

    def _tell_of(self, model: Any, had: dict[str, Any], paths: dict[str, Any], optimizer: Any) -> None:
        """Tells what the model had of its own; one that was saved under the plan and loaded has the plan's."""
        from keras.optimizers import LossScaleOptimizer

        low = {path: policy for path, policy in had.items() if policy.compute_dtype in ("float16", "bfloat16")}
        changed = {path: policy for path, policy in low.items() if policy.name != paths[path].dtype_policy.name}
        for path, policy in changed.items():
            self.tell("found_dtype_policy", path or model.name, f"dtype={policy.name!r}")
        if isinstance(optimizer, LossScaleOptimizer) and (changed or not low or not self.uses_float16):
            self.tell("found_grad_scaler", model.name, type(optimizer).__name__)


def _adding_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_loss(layer: Any, loss: Any) -> None:
        original(layer, in_float32(loss))

    return add_loss


def _refuse_replicas(model: Any) -> None:
    strategy: Any = getattr(model, "distribute_strategy", None)  # TensorFlow's models alone have one
    if getattr(strategy, "num_replicas_in_sync", 1) > 1:
        raise PlanError(
            f"got {strategy.num_replicas_in_sync} replicas under a plan with float16, each of which would judge by its "
            "own gradients whether to skip a step; train with a bfloat16 plan (--recipe bf16-mixed)"
        )


def _is_jax() -> bool:
    import keras

    return bool(keras.backend.backend() == "jax")


def _build_optimizer(model: Any) -> None:
    """Builds an optimizer that the plan put in after Keras had built the model's own; TensorFlow's build themselves."""
    optimizer = getattr(model, "optimizer", None)
    if _is_jax() and optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def _has_stock_step(model: Any) -> bool:
    """Returns whether a model trains by Keras' own step, which scales the loss."""
    import keras

    return type(model).train_step is keras.Model.train_step

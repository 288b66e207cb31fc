# SPDX-License-Identifier: Apache-2.0
"""Keras' loss-scale optimizer with the plan's rules: a floor, a ceiling, growth where there is room, an account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops
from keras.src import backend
from keras.src.utils import tracking

from floatwise.errors import BadInputError
from floatwise.keras.scale_moves import MEMORY, Memory, first_memory, moved
from floatwise.plan import LossScale

__all__ = ["LossScaleOptimizer"]

_NEVER_SCALED = (
    "got gradients of a loss that {name}.scale_loss() has never seen: they would be divided by {scale:g}, and SGD "
    "would stand still while Adam hides it. Take gradients of optimizer.scale_loss(loss), or use "
    "floatwise.keras.training_step; if you scale in another way, make it with checks_scaling=False"
)
_TWICE = (
    "got a {inner} to wrap, which divides gradients by a loss scale already: both scales would be taken out. Give the "
    "optimizer inside it: optimizer.inner_optimizer"
)


@keras.saving.register_keras_serializable(package="floatwise")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """A `keras.optimizers.LossScaleOptimizer` whose scale follows a plan's `[loss_scale]`.

    It can be used wherever Keras' own is, in `fit` and in loops, on the TensorFlow, JAX and PyTorch backends, and
    differs where Keras 3.15.1 was measured to go wrong:

    * The scale has a floor and a ceiling. Keras' own falls to 0 after some 150 overflows in a row, and the next good
      batch then writes NaN into every weight.
    * It refuses to wrap another loss-scale optimizer, and to be wrapped by one.
    * A loop that never calls `scale_loss` gets an error at its first step.
    * `scale_loss` multiplies in float32 and `apply` works outside of `jit` on the JAX backend.

    Clipping, weight decay and averages belong to the inner optimizer, which sees unscaled gradients.

    Args:
      inner_optimizer: The optimizer to wrap.
      initial_scale: The scale of the first step. Default: that of `settings`, 65536.
      dynamic_growth_steps: Good steps before the scale may grow. Default: `growth_interval` of `settings`, 2000.
      name: A name.
      settings: A plan's loss scale, or its fields. Default: `floatwise.plan.LossScale()`.
      checks_scaling: Whether steps without any earlier `scale_loss` are an error.

    Raises:
      BadInputError: The inner optimizer scales the loss itself.
      PlanError: A setting is unknown, or outside what is allowed.

    Attributes:
      settings: The loss scale's settings.
      dynamic_scale: What the loss is multiplied by: a float32 variable of shape [], once built.
      scale_memory: A float32 variable; see `floatwise.keras.scale_moves.Memory`.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        name: str | None = None,
        *,
        settings: LossScale | Mapping[str, Any] | None = None,
        checks_scaling: bool = True,
        **kwargs: Any,
    ) -> None:
        given: dict[str, Any] = settings.model_dump() if isinstance(settings, LossScale) else dict(settings or {})
        if initial_scale is not None:
            given["initial_scale"] = float(initial_scale)
        if dynamic_growth_steps is not None:
            given["growth_interval"] = dynamic_growth_steps
        if isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer):
            raise BadInputError(_TWICE.format(inner=type(inner_optimizer).__name__))
        made = LossScale(**given)
        super().__init__(inner_optimizer, made.initial_scale, made.growth_interval, name=name, **kwargs)
        self.settings = made
        self.checks_scaling = checks_scaling
        self._has_scaled = False
        self._is_made = True

    @property
    def loss_scale_factor(self) -> float | None:
        """The scale of the first step. Keras' own wrapper sets this on what it wraps, which is refused here."""
        return self.settings.initial_scale if self.__dict__.get("_is_made") else None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        if self.__dict__.get("_is_made"):
            raise BadInputError(_TWICE.format(inner=type(self).__name__))

    @property
    def skipped_steps(self) -> int:
        """Steps that were skipped for gradients that were not finite. Waits for the device."""
        return int(self.read_memory().skipped_steps)

    @property
    def consecutive_skips(self) -> int:
        """How many of the last steps in a row were skipped. Waits for the device."""
        return int(self.read_memory().consecutive_skips)

    def read_memory(self) -> Memory:
        """Returns the memory as Python numbers. Waits for the device.

        During `fit` on the JAX backend variables are brought up to date at the end of an epoch.
        """
        values = ops.convert_to_numpy(self.scale_memory).tolist() if self.built else first_memory(self.settings)
        return Memory(*values)

    @tracking.no_automatic_dependency_tracking  # type: ignore[untyped-decorator]
    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the variables of this optimizer and of the inner one."""
        if self.built:
            return
        start = first_memory(self.settings)
        self.scale_memory = self.add_variable(
            shape=(MEMORY,),
            dtype="float32",
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(start, dtype=dtype),
            aggregation="none",
            name="scale_memory",
        )
        super().build(var_list)

    def scale_loss(self, loss: Any) -> Any:
        """Returns a loss times the scale, in float32."""
        self._has_scaled = True
        scale = self.dynamic_scale if self.built else self.initial_scale
        return ops.multiply(ops.cast(loss, "float32"), scale)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Unscales gradients and steps the inner optimizer; skips the step when one is not finite.

        Args:
          grads: Gradients of the scaled loss, one for each variable, None where there is none.
          trainable_variables: The variables; those it was built with by default.

        Raises:
          BadInputError: The loss was never scaled.
        """
        self._check_scaled()
        if backend.backend() == "jax" and not backend.in_stateless_scope():
            self._apply_in_place(list(grads), trainable_variables)
        else:
            super().apply(grads, trainable_variables)

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Returns the trainable variables and the optimizer's variables after a step, as `apply` makes them."""
        self._check_scaled()
        new: tuple[list[Any], list[Any]] = super().stateless_apply(
            list(optimizer_variables), list(grads), list(trainable_variables)
        )
        return new

    def get_config(self) -> dict[str, Any]:
        """Returns what makes the same optimizer again, as JSON has it."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "settings": self.settings.model_dump(mode="json"),
            "checks_scaling": self.checks_scaling,
        }

    def _check_scaled(self) -> None:
        if self.checks_scaling and not self._has_scaled:
            raise BadInputError(_NEVER_SCALED.format(name=type(self).__name__, scale=self.settings.initial_scale))

    def _apply_in_place(self, grads: list[Any], trainable_variables: Sequence[Any] | None) -> None:
        if not self.built:
            with backend.name_scope(self.name, caller=self):
                self.build(trainable_variables or ())
        if trainable_variables is not None:
            by_variable = {id(v): g for v, g in zip(trainable_variables, grads, strict=True)}
            self.inner_optimizer._check_variables_are_known(trainable_variables)
            grads = [by_variable.get(id(v)) for v in self._trainable_variables]
        mine = self.variables
        weights, own = self.stateless_apply(
            [v.value for v in mine], grads, [v.value for v in self._trainable_variables]
        )
        for variable, value in zip((*self._trainable_variables, *mine), (*weights, *own), strict=True):
            variable.assign(value)

    def _unscaled(self, grads: Sequence[Any], variables: Sequence[Any], scale: Any) -> list[Any]:
        return [
            g if g is None or self._overwrite_variable_with_gradient(v) else ops.divide(g, scale)
            for g, v in zip(grads, variables, strict=True)
        ]

    def _move(self, finite: bool, grads: Sequence[Any] = ()) -> None:
        largest, zero_share = _seen(grads) if finite else (0.0, 0.0)
        scale, good_steps, memory = moved(
            self.settings,
            ops.convert_to_tensor(self.dynamic_scale),
            ops.convert_to_tensor(self.step_counter),
            ops.convert_to_tensor(self.scale_memory),
            finite,
            largest,
            zero_share,
        )
        self.dynamic_scale.assign(scale)
        self.step_counter.assign(good_steps)
        self.scale_memory.assign(memory)

    # The four methods below are where Keras 3.15.1 (keras/src/optimizers/loss_scale_optimizer.py) branches: `apply` and
    # `stateless_apply` decide whether the gradients are finite, also across replicas, and call one of them.

    def _stateful_handle_finite_grads(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None) -> None:
        scale = ops.convert_to_tensor(self.dynamic_scale)
        unscaled = self._unscaled(grads, trainable_variables or self._trainable_variables, scale)
        self._move(True, unscaled)
        self.inner_optimizer.apply(unscaled, trainable_variables=trainable_variables)

    def _stateful_handle_non_finite_grads(self) -> None:
        self._move(False)

    def _stateless_handle_finite_grads(
        self, optimizer_variables: list[Any], grads: list[Any], trainable_variables: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        mapping = list(zip(self.variables, optimizer_variables, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            scale = ops.convert_to_tensor(self.dynamic_scale)
            unscaled = self._unscaled(grads, self._trainable_variables, scale)
            self._move(True, unscaled)
            inner = [v.value for v in self.inner_optimizer.variables]
            weights, inner = self.inner_optimizer.stateless_apply(inner, unscaled, trainable_variables)
        return list(weights), [scope.get_current_value(v) for v in self._variables] + list(inner)

    def _stateless_handle_non_finite_grads(
        self, optimizer_variables: list[Any], trainable_variables: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        mapping = list(zip(self.variables, optimizer_variables, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self._move(False)
        return trainable_variables, [scope.get_current_value(v) for v in self.variables]


def _seen(grads: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the largest magnitude and the share of zeros of unscaled gradients, float32 of shape []."""
    values = [_dense(grad) for grad in grads if grad is not None]
    values = [value for value in values if 0 not in value.shape]
    if not values:
        return 0.0, 0.0
    largest = ops.max(ops.stack([ops.cast(ops.max(ops.abs(value)), "float32") for value in values]))
    zeros = sum(ops.sum(ops.cast(value == 0, "float32")) for value in values)
    sizes = sum(ops.cast(ops.size(value), "float32") for value in values)
    return largest, zeros / sizes


def _dense(grad: Any) -> Any:
    """Returns the stored values of a gradient: of TensorFlow's IndexedSlices and JAX's BCOO those of some rows."""
    if hasattr(grad, "dense_shape") and hasattr(grad, "values"):
        return grad.values
    return grad.data if type(grad).__name__ in ("BCOO", "JAXSparse") else grad

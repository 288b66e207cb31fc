# SPDX-License-Identifier: Apache-2.0
"""The loss scale as a tree of scalars: within bounds, up only where gradients leave room, and with an account."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from floatwise.errors import BadInputError
from floatwise.jax.dtypes import is_floating
from floatwise.jax.finite import AxisName, agreed, agreed_largest
from floatwise.jax.scale_growth import ScaleGrowth
from floatwise.jax.scale_report import LossScaleReport, raise_if_stuck, read_report
from floatwise.plan import LossScale as Settings
from floatwise.plan import Plan

__all__ = ["LossScale"]

# Between these a scale and its reciprocal are normal float32 numbers (IEEE 754-2019, table 3.5); XLA may flush
# subnormal ones to zero.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**126

# A plan without float16 gradients has no scale: 1 changes no value.
_NONE = Settings(mode="static", initial_scale=1.0)


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """A loss scale and what it has seen; `update` gives the next one, so nothing is ever changed in place.

    It follows a plan's `[loss_scale]` as PyTorch's runtime does: the scale backs off after `hysteresis` overflows in a
    row, never below `floor`; it grows after `growth_interval` good steps, never above `ceiling`, and with
    `growth = "headroom"` only where the gradients leave room and not to where it has overflowed. Every array has shape
    [], so it can be carried through `jit`, `scan`, `pmap` and `shard_map`, replicated like the step count.

    `value_and_grad` does the whole of it; by hand, always unscale with the scale that the loss was multiplied by:

    ```python
    grads = jax.grad(lambda p: loss_scale.scale(loss_fn(p, batch)))(params)
    grads = loss_scale.unscale(grads)                     # before update
    finite = fw.jax.all_finite(grads)
    loss_scale = loss_scale.update(finite, fw.jax.largest_magnitude(grads))
    ```

    Attributes:
      value: What the loss is multiplied by, float32.
      good_steps: Steps without overflow since the scale last moved or might have grown, int32.
      patience: Overflows in a row that are still tolerated before the scale backs off, int32.
      growth: What gradients have shown about room for growth.
      updates: Calls of `update`, int32.
      skipped_steps: How many of them were of a step with non-finite gradients, int32.
      consecutive_skips: How many of the last in a row were, int32.
      loss_was_bad: Whether the loss of the last skipped step was not finite itself.
      settings: The plan's fields; static under `jit`.
    """

    value: jax.Array
    good_steps: jax.Array
    patience: jax.Array
    growth: ScaleGrowth
    updates: jax.Array
    skipped_steps: jax.Array
    consecutive_skips: jax.Array
    loss_was_bad: jax.Array
    settings: Settings

    @classmethod
    def from_settings(cls, settings: Settings) -> LossScale:
        """Returns the scale of a plan's `[loss_scale]`.

        Raises:
          BadInputError: A scale or bound is outside 2**-126 to 2**126.
        """
        for name in ("initial_scale", "floor", "ceiling"):
            if not _SMALLEST <= getattr(settings, name) <= _LARGEST:
                raise BadInputError(f"got {name} {getattr(settings, name)!r}; expected 2**-126 to 2**126")
        window = settings.window_log2
        zero = jnp.int32(0)
        return cls(
            value=jnp.float32(settings.initial_scale),
            good_steps=zero,
            patience=jnp.int32(settings.hysteresis),
            growth=ScaleGrowth.start(None if window is None else 2.0 ** window[1]),
            updates=zero,
            skipped_steps=zero,
            consecutive_skips=zero,
            loss_was_bad=jnp.bool_(False),
            settings=settings,
        )

    @classmethod
    def from_plan(cls, plan: Plan) -> LossScale:
        """Returns a plan's loss scale; one without gives a static scale of 1, which still counts skipped steps."""
        return cls.from_settings(plan.loss_scale or _NONE)

    @classmethod
    def dynamic(cls, **settings: Any) -> LossScale:
        """Returns a scale that follows the gradients.

        Args:
          **settings: Fields of a plan's `[loss_scale]`, such as `initial_scale` (default 65536), `growth_interval`
            (2000), `floor` (1), `ceiling` (2**24), `growth` (`"headroom"` or `"fixed"`), `hysteresis` (1).

        Raises:
          PlanError: A field is unknown, or its value outside what is allowed.
          BadInputError: As `from_settings`.
        """
        return cls.from_settings(Settings(mode="dynamic", **settings))

    @classmethod
    def static(cls, scale: float) -> LossScale:
        """Returns a scale that stays as it is, and still counts skipped steps.

        Raises:
          PlanError: `scale` is not positive.
          BadInputError: As `from_settings`.
        """
        return cls.from_settings(Settings(mode="static", initial_scale=scale))

    def scale(self, loss: Any) -> Any:
        """Returns a loss, or a tree of losses, times the scale, in float32.

        Raises:
          BadInputError: A loss is float16: its gradient is the scale itself, which 65536 overflows there.
        """
        return jax.tree.map(self._scaled, loss)

    def unscale(self, grads: Any) -> Any:
        """Returns gradients divided by the scale; None and what is not floating point stay as they are.

        float16 gradients come back in float32, since float16 loses again what scaling has saved.
        """
        inverse = 1 / self.value

        def unscaled(grad: Any) -> Any:
            if not is_floating(grad):
                return grad
            wide = _wide(grad)
            product = grad.astype(wide) * inverse.astype(wide)
            return product if grad.dtype == jnp.float16 else product.astype(grad.dtype)

        return jax.tree.map(unscaled, grads)

    def update(
        self,
        finite: jax.Array,
        largest: jax.Array | None = None,
        *,
        loss_finite: jax.Array | bool = True,
        axis_name: AxisName = None,
    ) -> LossScale:
        """Returns the loss scale after a step.

        Args:
          finite: Whether all its gradients were, a boolean of shape [] (`all_finite`).
          largest: The largest magnitude of an unscaled gradient (`largest_magnitude`). Without it, growth has no
            measure of headroom; it still avoids scales that have overflowed.
          loss_finite: Whether its loss was: after one that was not, nothing is held against the scale.
          axis_name: Mapped axes over which the findings are agreed. Not needed when they are already.
        """
        settings, before = self.settings, self.value
        finite = agreed(jnp.asarray(finite), axis_name)
        loss_bad = ~agreed(jnp.asarray(loss_finite), axis_name)
        largest = agreed_largest(jnp.float32(0) if largest is None else largest.astype(jnp.float32), axis_name)
        good = self.good_steps + 1
        is_due = finite & (good >= settings.growth_interval)
        patience = jnp.where(finite, settings.hysteresis, self.patience - 1)
        after = jnp.where(
            finite,
            jnp.where(is_due & self._may_grow(largest), before * settings.growth_factor, before),
            jnp.where(patience > 0, before, before * settings.backoff_factor),
        )
        if settings.mode == "static":
            after = before
        else:  # a scale outside the bounds moves inward only
            after = jnp.clip(after, jnp.minimum(before, settings.floor), jnp.maximum(before, settings.ceiling))
        skip = (~finite).astype(jnp.int32)
        return dataclasses.replace(
            self,
            value=after,
            good_steps=jnp.where(finite & ~is_due, good, 0),
            patience=patience,
            growth=self.growth.note(before, after, ~finite, largest, loss_bad, settings.growth_interval),
            updates=self.updates + 1,
            skipped_steps=self.skipped_steps + skip,
            consecutive_skips=jnp.where(finite, 0, self.consecutive_skips + 1),
            loss_was_bad=jnp.where(finite, self.loss_was_bad, loss_bad),
        )

    def report(self) -> LossScaleReport:
        """Returns what has happened, as Python numbers; call it outside of `jit`. Waits for the device.

        Of a scale replicated by `pmap` the first replica is read.
        """
        return read_report(self)

    def raise_if_stuck(self, alarm_after: int = 25, grads: Any = None) -> None:
        """Raises when step after step is skipped; call it outside of `jit`, every few steps. Waits for the device.

        Args:
          alarm_after: Skipped steps in a row. Default: 25, because 24 overflows take the scale from the default
            ceiling to the default floor; after one more the scale is not the cause.
          grads: The gradients of the last step, so that the message names those that are not finite.

        Raises:
          NonFiniteGradientsError: As described; the parameters are as after the last good step.
        """
        raise_if_stuck(self, alarm_after, grads)

    def _scaled(self, loss: Any) -> Any:
        loss = jnp.asarray(loss)
        if loss.dtype == jnp.float16:
            raise BadInputError(
                "got a float16 loss, whose gradient is the loss scale itself and overflows from 65520 on; "
                "compute the loss in float32: loss.astype(jnp.float32), or output=float32 in the policy"
            )
        return loss.astype(_wide(loss)) * self.value.astype(_wide(loss))

    def _may_grow(self, largest: jax.Array) -> jax.Array:
        s = self.settings
        if s.growth == "fixed":
            return jnp.asarray(True)
        return self.growth.allows(self.value, s.growth_factor, s.growth_interval, s.headroom_bits, largest)


def _wide(array: Any) -> Any:
    """Returns float64 for what is float64, and float32 for all else."""
    return array.dtype if array.dtype == jnp.float64 else jnp.float32


jax.tree_util.register_dataclass(
    LossScale,
    data_fields=[field.name for field in dataclasses.fields(LossScale) if field.name != "settings"],
    meta_fields=["settings"],
)

# SPDX-License-Identifier: Apache-2.0
"""A plan applied to a script that knows nothing of it: a listener on the tap of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
from typing_extensions import override

from floatwise.jax.script.autocast import Autocast
from floatwise.jax.script.gradient_reports import GradientReports, OnGradient, OnTrainingCall
from floatwise.jax.script.gradient_tap import Call, GradientListener, GradientTap
from floatwise.jax.script.plan_support import check_plan
from floatwise.jax.script.rewriting import rewrite
from floatwise.jax.script.scaled_gradients import ScaledGradients
from floatwise.plan import Plan
from floatwise.tap.patches import Patches

__all__ = ["AppliedPlan"]

#: Rebuilt `jit` functions kept for one loss function of an eager script before they are made anew: convention.
_MOST_KEPT = 1000


class AppliedPlan(GradientListener):
    """Trains a script under a plan.

    What the script differentiates with `jax.grad` or `jax.value_and_grad` computes under the plan; what it only
    evaluates, such as a validation loss, stays as it is. In float32 nothing is rewritten: the script computes what it
    would alone.

    Args:
      plan: The plan.
      on_gradient: Gets what names the loss function, and the loss, for every gradient that was computed.
      waits: Whether a compiled step returns when it is computed; see `GradientReports`, also for the next.
      on_training_call: Gets every compiled step, with its arguments, after it was called.

    Raises:
      PlanError: This runtime cannot apply the plan.
    """

    def __init__(
        self,
        plan: Plan,
        on_gradient: OnGradient,
        *,
        waits: bool = False,
        on_training_call: OnTrainingCall | None = None,
    ) -> None:
        self.plan = check_plan(plan)
        self._reports = GradientReports(on_gradient, waits=waits, on_training_call=on_training_call)
        self.scaling = ScaledGradients(plan.loss_scale, self._reports) if plan.loss_scale is not None else None
        self.not_applied: dict[Hashable, str] = {}
        self._autocast = Autocast(plan)
        policies = (plan.policy, *(entry.policy for entry in plan.modules))
        self._rewrites = any(policy.compute_dtype != "float32" for policy in policies)
        self._kept: dict[Hashable, dict[Hashable, Any]] = {}

    @property
    def unmatched(self) -> list[str]:
        """The plan's globs that have covered nothing."""
        return self._autocast.unmatched

    @property
    def found_no_product(self) -> bool:
        """Whether nothing was computed in 16 bits though the plan says so."""
        return self._rewrites and not self._autocast.products

    def install(self, patches: Patches) -> None:
        """Takes the script's gradients, and has its float32 products computed in TF32 where the plan says so.

        JAX forgets what it has compiled, now and when this is undone: a compiled step keeps what it was traced with.
        """
        jax.clear_caches()  # type: ignore[no-untyped-call]
        patches.on_undo(jax.clear_caches)
        GradientTap(patches, self)
        self._reports.install(patches)
        if self.plan.float32_matmul == "tf32":
            before = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
            jax.config.update("jax_default_matmul_precision", "tensorfloat32")  # type: ignore[no-untyped-call]
            patches.on_undo(
                lambda: jax.config.update("jax_default_matmul_precision", before)  # type: ignore[no-untyped-call]
            )

    def settle(self) -> None:
        """Waits for all that is still under way."""
        self._reports.settle()

    @override
    def loss_function(self, call: Call) -> Callable[..., Any]:
        fun = call.fun
        if self._rewrites:
            kept = self._kept.setdefault(call.key, {})
            if len(kept) > _MOST_KEPT:
                kept.clear()

            def gave_up(error: Exception) -> None:
                self.not_applied[call.key] = f"{type(error).__name__}: {error}".splitlines()[0]

            fun = rewrite(fun, self._autocast, call.argnums, gave_up=gave_up, kept=kept)
        return fun if self.scaling is None else self.scaling.scaled(call, fun)

    @override
    def gradients(self, call: Call, loss: Any, grads: Any) -> Any:
        if self.scaling is not None:
            return self.scaling.unscaled(call, loss, grads)
        self._reports.report(call.key, loss, grads)
        return grads

# SPDX-License-Identifier: Apache-2.0
"""A plan applied to a model and its optimizers: forward, backward, step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.plan import Plan
from floatwise.torch.cuda_policy import CudaPolicy
from floatwise.torch.islands import apply_islands, forget_calls
from floatwise.torch.loss_scaler import LossScaler
from floatwise.torch.plan_support import as_plan
from floatwise.torch.refusals import check_limits, check_optimizers, check_weights, device_type_of
from floatwise.torch.region import autocast_region, float32_products

__all__ = ["Precision", "StepInfo", "prepare"]


@dataclass(frozen=True)
class StepInfo:
    """What one `Precision.step` did.

    Attributes:
      stepped: True when the optimizers updated the weights; move the learning rate only then.
      skipped: True when a gradient was not finite and the weights are as before. Neither is true when no
        parameter had a gradient.
      loss_scale: The scale the next backward will use; 1.0 without loss scaling.
      grad_norm: The norm of all gradients before clipping, unscaled; None unless `clip_norm` was given.
    """

    stepped: bool
    skipped: bool
    loss_scale: float
    grad_norm: float | None = None


def prepare(
    model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], plan: Plan | str | os.PathLike[str]
) -> Precision:
    """Applies a plan to a model that is on its device and to the optimizers of its parameters.

    Args:
      model: The model, with float32 weights, wrapped (DDP, torch.compile) or not.
      optimizer: Its optimizer, or all of them.
      plan: A plan, the name of a recipe, or the path of a plan file.

    Raises:
      PlanError: This runtime cannot apply the plan, or the plan contradicts the model's weights.
      BadInputError: The model has no parameters, or an optimizer has none of them.
      UnknownNameError: No recipe or file has this name.
      BadFileError: The file is no plan.
    """
    return Precision(model, optimizer, as_plan(plan))


class Precision:
    """A plan in force; made by `prepare`.

    ```python
    for inputs, target in loader:
        with precision.forward():
            loss = criterion(model(inputs), target)
        precision.backward(loss)
        info = precision.step(clip_norm=1.0)
        optimizer.zero_grad()
        if info.stepped:
            scheduler.step()
    ```

    To accumulate gradients, call `backward` on the loss of each micro-batch divided by their number, and
    `step` once after the last.

    On a CPU, `torch.autocast` follows CUDA's operator lists in the whole process until `close()`.

    Attributes:
      plan: The plan.
      optimizers: The optimizers that `step` steps.
      scaler: The loss scaler; disabled unless the plan scales the loss.
      islands: The modules with policies of their own.
      device_type: Where the model is: `cpu`, `cuda`, …
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], plan: Plan) -> None:
        self.plan = plan
        self.optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
        self.device_type = device_type_of(model)
        check_weights(model, plan)
        check_optimizers(model, self.optimizers)
        self.scaler = LossScaler.from_plan(plan.loss_scale, device=self.device_type)
        self.islands = apply_islands(model, plan, self.device_type)
        low_on_cpu = self.device_type == "cpu" and plan.compute_dtype != "float32"
        self._policy = CudaPolicy() if low_on_cpu else None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Context of the forward pass and the loss. What they return is not cast, as in `torch.autocast`."""
        with autocast_region(self.plan, self.device_type):
            try:
                yield
            except BaseException:
                forget_calls()
                raise

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Scales `loss` and computes its gradients, which add to those already there."""
        # Autocast is off: products in the backward take the formats the forward left, and no new casts.
        with float32_products(self.plan.float32_matmul, self.device_type):
            with torch.autocast(self.device_type, enabled=False):
                self.scaler.scale(loss).backward(retain_graph=retain_graph)

    def step(self, clip_norm: float | None = None, clip_value: float | None = None) -> StepInfo:
        """Unscales the gradients once, clips them, and steps every optimizer that has some, or none of them.

        The step is skipped when unscaling finds a gradient that is not finite, in any optimizer, and when the
        norm to clip is not finite: the update would write NaN into the weights. Without a loss scale and
        without `clip_norm` the gradients are not inspected.

        Args:
          clip_norm: Largest norm of all gradients together.
          clip_value: Largest magnitude of any gradient.

        Raises:
          BadInputError: A limit that is not positive, or both; or gradients of a loss that was not scaled.
        """
        check_limits(clip_norm, clip_value)
        optimizers = [o for o in self.optimizers if _with_gradients(o)]
        if not optimizers:
            return StepInfo(stepped=False, skipped=False, loss_scale=self.scaler.get_scale())
        self._unscale(optimizers)
        norm = None
        if clip_norm is not None:
            norm = _clip_norm([p for o in optimizers for p in _with_gradients(o)], clip_norm)
        finite = norm is None or math.isfinite(norm)
        if self.scaler.is_enabled():
            finite = self.scaler.agree(optimizers, finite)
        if clip_value is not None and finite:
            nn.utils.clip_grad_value_([p for o in optimizers for p in _with_gradients(o)], clip_value)
        if finite or self.scaler.is_enabled():  # a scaler skips by itself, and moves its scale
            for optimizer in optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
        return StepInfo(finite, not finite, self.scaler.get_scale(), norm)

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs beside the model's and the optimizers' own states."""
        return {"recipe": self.plan.recipe, "loss_scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state; one saved without loss scaling leaves the plan's initial scale.

        Raises:
          BadInputError: `state` is not from `state_dict`.
        """
        if "loss_scaler" not in state:
            raise BadInputError(
                f"got a state with the keys {sorted(state)}; expected what Precision.state_dict returned, "
                "with 'loss_scaler'. For the state of a GradScaler call precision.scaler.load_state_dict"
            )
        if state["loss_scaler"]:
            self.scaler.load_state_dict(state["loss_scaler"])

    def close(self) -> None:
        """Takes the hooks off the model and gives CPU autocast its own lists back; twice is harmless."""
        self.islands.remove()
        if self._policy is not None:
            self._policy.close()

    def _unscale(self, optimizers: Sequence[Optimizer]) -> None:
        if not self.scaler.is_enabled():
            return
        if self.scaler._get_scale_async() is None:
            raise BadInputError(
                "got gradients of a loss that was not scaled; call precision.backward(loss), not loss.backward()"
            )
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)


def _with_gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _clip_norm(parameters: list[Tensor], limit: float) -> float:
    """Returns the norm of the gradients, clipped unless it is not finite: the factor would be zero or NaN."""
    total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm = float(total)
    if math.isfinite(norm):
        nn.utils.clip_grads_with_norm_(parameters, limit, total)
    return norm

# SPDX-License-Identifier: Apache-2.0
"""A plan applied to a model and its optimizers: forward, backward, step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.plan import Plan
from floatwise.torch.accumulation import Accumulation
from floatwise.torch.clipping import check_limits, clip_by_norm, clip_by_value
from floatwise.torch.cuda_policy import CudaPolicy
from floatwise.torch.distributed.convert import converting
from floatwise.torch.distributed.formats import DistributedFormats
from floatwise.torch.distributed.shards import check_shards
from floatwise.torch.islands import apply_islands, forget_calls
from floatwise.torch.masters import MasterWeights
from floatwise.torch.plan_support import as_plan
from floatwise.torch.refusals import (
    as_optimizers,
    check_closure,
    check_no_closure,
    check_optimizers,
    check_torch,
    check_weights,
    chosen_optimizers,
    device_type_of,
    has_fsdp1,
    refuse_clip_norm,
)
from floatwise.torch.region import autocast_region, float32_products
from floatwise.torch.scaling.gradients import ScaledGradients, parameters_with_gradients, several_ranks
from floatwise.torch.scaling.loss_scaler import LossScaler
from floatwise.torch.step_info import StepInfo
from floatwise.torch.stored_weights import store_weights, with_masters

__all__ = ["Precision", "StepInfo", "prepare"]


def prepare(
    model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], plan: Plan | str | os.PathLike[str]
) -> Precision:
    """Applies a plan to a model that is on its device and to the optimizers of its parameters.

    Call it once, when the model is on its device, wrapped and compiled as it is to be trained, and the optimizers
    are made.

    Args:
      model: The model, with float32 weights, wrapped (DDP, FSDP2, torch.compile) or not. A plan with 16-bit weights
        stores them so from now on, in the same `Parameter` objects. Of several models that train together,
        `nn.ModuleList([...])`.
      optimizer: Its optimizer, or all of them. Go on using your own object for `zero_grad`, checkpoints and
        learning-rate schedulers; only its `step` becomes `precision.step()`.
      plan: A plan, the name of a recipe, or the path of a plan file. There is no default: `floatwise plan` finds
        the one for your script and device; without it, begin with `bf16-mixed` where the device multiplies
        bfloat16, else with `fp16-mixed`.

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
        precision.zero_grad()
        if info.stepped:
            scheduler.step()
    ```

    Gradients of several micro-batches for one step (`accumulate` matters under DDP and FSDP only):

    ```python
    for number, (inputs, target) in enumerate(loader, 1):
        last = number % 4 == 0
        with precision.accumulate(last=last):
            with precision.forward():
                loss = criterion(model(inputs), target)
            precision.backward(loss, accumulation_steps=4)
        if last:
            info = precision.step(clip_norm=1.0)
            precision.zero_grad()
    ```

    Zero the gradients after every step, also after one that was skipped, or before the first backward of the next:
    a gradient that is not finite stays so whatever is added to it. Whether they are set to None or to zero makes
    no difference here.

    For an exact resume, save after `step` the states of model, optimizers, schedulers, `WeightAverage` and this
    (`state_dict`), and load them after `prepare`.

    On a CPU, `torch.autocast` follows CUDA's operator lists in the whole process until `close()`.

    Attributes:
      plan: The plan.
      model: The model, as given.
      optimizers: The optimizers that `step` steps.
      scaler: The loss scaler; disabled unless the plan scales the loss.
      islands: The modules with policies of their own.
      device_type: Where the model is: `cpu`, `cuda`, …
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], plan: Plan) -> None:
        given = as_optimizers(optimizer)
        self.plan = plan
        self.model = model
        self.device_type = device_type_of(model)
        self._distributed = DistributedFormats(plan)
        check_shards(model, given)
        with converting(model) as convert:  # on entering, FSDP2's model has its shards for parameters
            check_torch(plan)
            check_weights(model, plan)
            check_optimizers(model, given)
            self._given = given
            self._weights = store_weights(model, plan, convert=convert)
        self._distributed.apply(model)
        self.optimizers = tuple(with_masters(optimizer, plan) for optimizer in given)
        self.scaler = LossScaler.from_plan(plan.loss_scale, device=self.device_type)
        self.scaler.watch(model)
        self._gradients = ScaledGradients(self.scaler, self.optimizers)
        self._accumulation = Accumulation(model, self._weights.parameters)
        self._has_fsdp1 = has_fsdp1(model)
        self.islands = apply_islands(model, plan, self.device_type)
        low_on_cpu = self.device_type == "cpu" and plan.compute_dtype != "float32"
        self._policy = CudaPolicy() if low_on_cpu else None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Context of the forward pass and the loss. What they return is not cast, as in `torch.autocast`.

        Within one region a weight is cast to 16 bits once. `step` makes the next forward cast anew, so that the
        region may span steps; whoever changes weights in place by other means leaves the region first, or calls
        `torch.clear_autocast_cache()`. Passes under `torch.no_grad` or `torch.inference_mode` may come before
        training passes in the same region.
        """
        with autocast_region(self.plan, self.device_type):
            try:
                yield
            except BaseException:
                forget_calls()
                raise

    @contextmanager
    def accumulate(self, *, last: bool) -> Iterator[None]:
        """Context of one micro-batch, its forward and its backward, when several make up a step.

        Gradients add up on each rank and are reduced over the ranks once, in the last micro-batch. With one
        process it changes nothing. FSDP keeps whole gradients in memory from micro-batch to micro-batch; where
        memory is short, leave this context out: each micro-batch is then reduced, with the same result.

        Args:
          last: True for the micro-batch before `step`, also for an early one at the end of the data. On every
            rank the same.
        """
        with self._accumulation.micro_batch(last):
            yield

    def backward(
        self, loss: Tensor, *, accumulation_steps: int = 1, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Scales `loss` and computes its gradients, which add to those already there.

        Autocast is off meanwhile: products take the formats the forward left.

        Args:
          loss: One number, or the loss of one micro-batch.
          accumulation_steps: How many micro-batches make up a step; the loss is divided by it. Default 1. It is
            right for mean losses of micro-batches of one size; where sizes differ (tokens, a last batch), divide
            the loss yourself by what all of them have together.
          retain_graph: Keeps the graph for another backward through it, as in `torch.Tensor.backward`. Default
            False; True when several losses share a forward and each has a backward of its own.
          create_graph: Makes the gradients differentiable. Default False; for a penalty on gradients use `grad`.

        Raises:
          BadInputError: `accumulation_steps` is no positive integer, or gradients to which these would be added are
            unscaled already.
        """
        if isinstance(accumulation_steps, bool) or not isinstance(accumulation_steps, int) or accumulation_steps < 1:
            raise BadInputError(f"got accumulation_steps {accumulation_steps!r}; expected a whole number from 1")
        self._gradients.before_backward()
        with self._outside_region(), self._accumulation.backward():
            part = loss if accumulation_steps == 1 else loss / accumulation_steps
            self.scaler.scale(part).backward(retain_graph=retain_graph or None, create_graph=create_graph)

    def grad(
        self,
        outputs: Tensor,
        inputs: Tensor | Sequence[Tensor],
        *,
        grad_outputs: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        allow_unused: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """Returns the gradients of `outputs` with respect to `inputs` in true size: `torch.autograd.grad`.

        The products in between are scaled, so that they do not vanish in float16. `.grad` is left alone. For a
        gradient penalty:

        ```python
        with precision.forward():
            loss = criterion(model(inputs), target)
        gradients = precision.grad(loss, list(model.parameters()), create_graph=True)
        with precision.forward():
            loss = loss + sum(g.square().sum() for g in gradients)
        precision.backward(loss)
        ```

        Args:
          outputs: What is differentiated.
          inputs: With respect to what. DDP's parameters do not work here, as with `torch.autograd.grad`.
          grad_outputs: The vector of the product, when `outputs` is not one number; here unscaled.
          retain_graph: Keeps the graph; by default as `create_graph`.
          create_graph: Makes the result differentiable. Default False; True for a penalty.
          allow_unused: Gives None for an input that `outputs` does not depend on. Default False: an error.

        Returns:
          One gradient per input, 16-bit ones in float32; infinite where the scale was too large, so that a loss
          made of it is skipped.
        """
        with self._outside_region():
            return self._gradients.grad(
                outputs,
                inputs,
                grad_outputs=grad_outputs,
                retain_graph=retain_graph,
                create_graph=create_graph,
                allow_unused=allow_unused,
            )

    def unscale(self, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Divides the gradients by the loss scale now, for whoever inspects or changes them before `step`.

        `step` does not do it a second time. After it comes `step`, or `zero_grad` to drop the batch, but no
        `backward`. Nothing happens without a loss scale, or when it was done before.

        Args:
          optimizer: Whose gradients; by default all.
        """
        self._gradients.unscale(chosen_optimizers(optimizer, self._given, self.optimizers))

    def step(
        self,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        *,
        norm_type: float = 2.0,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        closure: Callable[[], Any] | None = None,
    ) -> StepInfo:
        """Unscales the gradients once, clips them, and steps every optimizer that has some, or none of them.

        The step is skipped when unscaling finds a gradient that is not finite, in any of the optimizers or on any
        rank, and, under every plan, when the norm to clip is not finite: the update would write NaN into the
        weights. Without a loss scale and without `clip_norm` the gradients are not inspected. The gradients stay,
        unscaled, until they are zeroed. With a loss scale or `clip_norm` this waits for the device.

        Args:
          clip_norm: Largest norm of all gradients together; larger ones are scaled down. Default None: no clipping.
            1.0 is usual for transformers (GPT-3, arXiv:2005.14165, appendix B); `math.inf` only measures
            `StepInfo.grad_norm` and skips what is not finite.
          clip_value: Largest magnitude of any element of a gradient. Default None. It changes the direction of the
            step; clip by norm unless a method asks for it.
          norm_type: Order of the norm. Default 2.0, as in `torch.nn.utils.clip_grad_norm_`; `math.inf` limits the
            largest magnitude by scaling everything down.
          optimizer: The one to step, or several; default: all. For losses that take turns, as a GAN's: the backward
            of the generator's loss leaves gradients in the discriminator, too. The gradients of the others are
            left as they are and follow the scale when this step moves it.
          closure: For an optimizer that evaluates the loss several times, as LBFGS: it zeroes the gradients,
            computes the loss within `forward`, calls `backward` and returns the loss. Under a loss scale it is
            evaluated again at a smaller one when a gradient is not finite; the step is skipped when none is left.
            Nothing is clipped; without a loss scale clip inside it. One optimizer at a time.

        Raises:
          BadInputError: A limit that is not positive, or both; gradients of a loss that was not scaled, or that
            were not reduced over the ranks; an optimizer that was not prepared; a closure that is missing, or that
            cannot go with the rest.
          NonFiniteGradientsError: Step after step was skipped; the message names the gradients. The weights are as
            before and the scale has moved, so training can go on. See `LossScaler(alarm_after=...)`.
        """
        check_limits(clip_norm, clip_value, norm_type)
        chosen = chosen_optimizers(optimizer, self._given, self.optimizers)
        if closure is not None:
            check_closure(closure, chosen, (clip_norm, clip_value))
            self._gradients.step(chosen, closure)
            stepped = self.scaler.last_step == "stepped"
            return self._after_step(StepInfo(stepped, not stepped, self.scaler.get_scale()))
        check_no_closure(chosen)
        if clip_norm is not None and self._has_fsdp1:
            refuse_clip_norm()
        self._accumulation.check_reduced()
        ready = self._gradients.unscale(chosen)
        shares_norm = clip_norm is not None and several_ranks()
        if not ready and (self.scaler.is_enabled() or not shares_norm):
            return StepInfo(stepped=False, skipped=False, loss_scale=self.scaler.get_scale())
        parameters = [p for o in ready for p in parameters_with_gradients(o)]
        norm = clip_by_norm(parameters, clip_norm, norm_type) if clip_norm is not None else None
        finite = norm is None or math.isfinite(norm)
        if shares_norm or self.scaler.is_enabled():
            finite = self._gradients.agree(chosen, ready, finite)
        if clip_value is not None and finite:
            clip_by_value(parameters, clip_value)
        if finite or self.scaler.is_enabled():  # a scaler skips by itself, and moves its scale
            self._gradients.step(ready)
        return self._after_step(StepInfo(finite, not finite, self.scaler.get_scale(), norm))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all optimizers; each optimizer's own `zero_grad` does the same for its own.

        A batch that is dropped after `unscale` still moves the loss scale when it had overflowed.

        Args:
          set_to_none: False fills them with zeros. Default True, as in `torch.optim.Optimizer.zero_grad`.
        """
        self._gradients.forget()
        self._accumulation.drop()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

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
        """Takes the hooks off the model and gives CPU autocast its own lists back; twice is harmless.

        Weights that the plan stored in 16 bits become float32 again, with their exact values.
        """
        for given, stepping in zip(self._given, self.optimizers, strict=True):
            if stepping is not given and isinstance(stepping, MasterWeights):
                stepping.close()  # ours
        self.optimizers = self._given
        self._gradients.close()
        self.islands.remove()
        if self._policy is not None:
            self._policy.close()
        self._weights.restore()
        self._distributed.restore()

    @contextmanager
    def _outside_region(self) -> Iterator[None]:
        with float32_products(self.plan.float32_matmul, self.device_type):
            with torch.autocast(self.device_type, enabled=False):
                yield

    def _after_step(self, info: StepInfo) -> StepInfo:
        torch.clear_autocast_cache()  # within a region autocast does not notice that weights have changed
        return info

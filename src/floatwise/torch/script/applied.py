# SPDX-License-Identifier: Apache-2.0
"""A plan applied to a script that knows nothing of it: an observer on the tap that opens and closes autocast.

The region is open while an outermost module runs, a loss module included, and where the script itself opens one.
Outputs of outermost modules are handed back in float32: a loss, a metric or NumPy in the script computes with them in
float32, as CUDA's autocast would a loss, and nothing that the script does beside its model is rounded.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from floatwise.plan import Plan
from floatwise.tap.backward import leaves_of
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer
from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.tensors import map_tensors, to_float32
from floatwise.torch.cuda_policy import CudaPolicy
from floatwise.torch.distributed.formats import DistributedFormats
from floatwise.torch.distributed.shards import shards_of
from floatwise.torch.islands import apply_islands
from floatwise.torch.masters import stored_of
from floatwise.torch.paths import module_paths
from floatwise.torch.plan_support import TORCH_DTYPES, check_plan
from floatwise.torch.region import autocast_region
from floatwise.torch.script.masters import RunMasters
from floatwise.torch.script.scaled_backward import ScaledBackward

__all__ = ["AppliedPlan"]


#: Opened the region: an autocast region of the script's own, rather than a module (whose `id` is never negative).
_SCRIPT = -1


class AppliedPlan(Observer):
    """Trains a tapped script under a plan.

    A script that computes without modules trains its first step in float32: from then on the region is open
    whenever no backward pass or update runs.

    Args:
      plan: The plan.

    Raises:
      PlanError: This runtime cannot apply it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = check_plan(plan)
        self.scaling = ScaledBackward(plan.loss_scale) if plan.loss_scale is not None else None
        self.masters = RunMasters(plan, self._paths_of) if plan.weights.master != "none" else None
        self.distributed = DistributedFormats(plan)
        self.unmatched = [entry.module for entry in plan.modules]
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._seen_modules = False
        self._local = threading.local()
        self._existing: ExistingPrecision | None = None
        self._tap: Tap | None = None

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """The 16-bit dtype of products, or None in float32."""
        dtype = TORCH_DTYPES[self.plan.compute_dtype]
        return None if dtype is torch.float32 else dtype

    def install(self, tap: Tap, existing: ExistingPrecision) -> None:
        """Takes the place of the script's own precision, and keeps autocast out of `torch.autograd.grad`."""
        self._tap, self._existing = tap, existing
        if self.scaling is not None:
            existing.scaler_state, existing.load_scaler_state = self.scaling.state_dict, self.scaling.load_state_dict
            tap.patches.replace(torch.nn.utils.clip_grad, "_get_total_norm", _non_finite_is_skipped)
        tap.patches.replace(torch.autograd, "grad", self._outside_region)
        if self.masters is not None:
            self.masters.install(tap.patches)
            existing.is_planned = lambda tensor: stored_of(tensor) is not None
        if self.compute_dtype is not None:
            tap.patches.replace(F, "binary_cross_entropy", _in_float32)
            # Held throughout: checkpointed blocks compute their forward again during the backward pass.
            tap.patches.on_undo(CudaPolicy().close)
        tap.patches.on_undo(self._close)

    # -- forward ------------------------------------------------------------------------------------------------

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        if torch._C._get_tracing_state() is not None:
            return args, kwargs  # a trace records what the script computes, not what it is computed in
        if root not in self._roots:
            self._roots.add(root)
            self._seen_modules |= next(root.parameters(), None) is not None
            self._prepare(root)
        if self._existing is not None:
            args, kwargs = self._existing.raise_inputs(root, args, kwargs)
        if self.masters is not None:
            self.masters.store(root)
        self._open(_device_type(root), opener=id(root))
        return args, kwargs

    @override
    def root_left(self, root: nn.Module, output: Any) -> Any:
        self._close(opener=id(root))
        return map_tensors(output, to_float32)

    @override
    def root_failed(self, root: nn.Module) -> None:
        self._close(opener=id(root))

    @override
    def script_region_entered(self, device_type: str) -> None:
        self._open(device_type, opener=_SCRIPT)

    @override
    def script_region_left(self) -> None:
        self._close(opener=_SCRIPT)

    # -- backward and update ------------------------------------------------------------------------------------

    @override
    def backward_starts(self, roots: Sequence[Tensor]) -> Sequence[Tensor]:
        self._close()
        if self.masters is not None:
            self.masters.before_backward()
        return roots if self.scaling is None else self.scaling.scale(roots)

    @override
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        torch.clear_autocast_cache()
        if self.scaling is not None:
            self.scaling.after_backward()
        if self.masters is not None:
            self.masters.after_backward()
        if not self._seen_modules:
            leaf = next(iter(leaves_of(roots)), None)
            self._open(leaf.device.type if leaf is not None else "cpu")

    @override
    def backward_failed(self) -> None:
        if self.masters is not None:
            self.masters.after_backward()

    @override
    def step_starts(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._close()
        if self.scaling is not None:
            self.scaling.before_step(optimizer)
        if self.masters is not None and optimizer is not None:
            self.masters.before_step(optimizer)

    @override
    def closure_wrapped(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        wrapped = closure if self.scaling is None else self.scaling.wrap_closure(closure)
        return wrapped if self.masters is None else self.masters.closure_given(wrapped)

    @override
    def step_ended(self, optimizer: torch.optim.Optimizer | None) -> None:
        torch.clear_autocast_cache()
        if self.masters is not None:
            self.masters.after_step()
        if self.scaling is not None:
            self.scaling.after_step(optimizer)
        if not self._seen_modules and optimizer is not None:
            self._open(_device_of(optimizer))

    # -- details ------------------------------------------------------------------------------------------------

    def _open(self, device_type: str, opener: int = 0) -> None:
        if self.compute_dtype is None and self.plan.float32_matmul == "ieee":
            return
        if getattr(self._local, "region", None) is None:
            self._local.region, self._local.opener = ExitStack(), opener
            self._local.region.enter_context(autocast_region(self.plan, device_type))

    def _close(self, opener: int | None = None) -> None:
        region: ExitStack | None = getattr(self._local, "region", None)
        if region is not None and opener in (None, self._local.opener):
            self._local.region = None
            region.close()

    def _outside_region(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(*args: Any, **kwargs: Any) -> Any:
            region: ExitStack | None = getattr(self._local, "region", None)
            if region is None or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            device_type = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
            self._close()
            try:
                return original(*args, **kwargs)
            finally:
                self._open(device_type)

        return grad

    def _paths_of(self, model: nn.Module) -> dict[str, nn.Module]:
        if self._tap is None:
            return module_paths(model)
        return {self._tap.paths.of(module): module for module in model.modules()}

    def _prepare(self, root: nn.Module) -> None:
        if self.scaling is not None:
            self.scaling.watch(root.parameters())
            self.scaling.name_in_messages(root)
        if self.distributed.apply(root, self._paths_of(root)) and self.scaling is not None:
            self.scaling.share(root.parameters(), functools.partial(shards_of, root))
        if self.plan.modules and self._tap is not None:
            islands = apply_islands(root, self.plan, name_of=self._tap.paths.of)
            # A script's models come one by one: a glob is unmatched when no model has a module for it.
            self.unmatched = [glob for glob in self.unmatched if glob in islands.unmatched]


def _in_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps a loss on probabilities out of autocast: CUDA's refuses it, since float16 cannot tell them from 0 and 1."""

    def binary_cross_entropy(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(input.device.type, enabled=False):
            return original(to_float32(input), to_float32(target), *args, **kwargs)

    return binary_cross_entropy


def _non_finite_is_skipped(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keeps `clip_grad_norm_(error_if_nonfinite=True)` from ending a run: under a loss scale such a step is skipped."""

    def get_total_norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> Tensor:
        return original(tensors, norm_type, False, foreach)

    return get_total_norm


def _device_type(root: nn.Module) -> str:
    parameter = next(root.parameters(), None)
    if parameter is not None:
        return parameter.device.type
    return "cuda" if torch.cuda.is_available() else "cpu"


def _device_of(optimizer: torch.optim.Optimizer) -> str:
    return next((p.device.type for g in optimizer.param_groups for p in g["params"]), "cpu")

# SPDX-License-Identifier: Apache-2.0
"""Modules that a plan keeps in float32 inside a lower-precision region, by forward hooks."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from floatwise.errors import nearest_names
from floatwise.plan import Plan, Policy, match_module
from floatwise.tap.tensors import map_tensors, to_float32
from floatwise.torch.paths import module_paths
from floatwise.torch.plan_support import TORCH_DTYPES, check_plan
from floatwise.torch.policies import own_policies, policy_around

__all__ = ["Islands", "apply_islands", "forget_calls"]

_thread = threading.local()


class Islands:
    """The hooks of a plan's modules on a model.

    Attributes:
      policies: The policy of each module that has one of its own, by path.
      unmatched: Globs of the plan that no module of the model has a path for.
    """

    def __init__(
        self, policies: Mapping[str, Policy], unmatched: tuple[str, ...], handles: list[RemovableHandle]
    ) -> None:
        self.policies = dict(policies)
        self.unmatched = unmatched
        self._handles = handles

    def remove(self) -> None:
        """Takes the hooks off the model; doing so twice is harmless."""
        for handle in self._handles:
            handle.remove()


def apply_islands(
    model: nn.Module,
    plan: Plan,
    device_type: str | None = None,
    name_of: Callable[[nn.Module], str] | None = None,
) -> Islands:
    """Makes the modules that `plan` names compute as their own policies say, within an `autocast_region`.

    A module whose policy computes in float32 runs with autocast off, with its 16-bit inputs cast to float32,
    and everything called below it does too, except where a module further down has a policy that computes
    lower. Its outputs have the policy's `output_dtype`. Containers that are never called, such as
    `nn.ModuleList`, pass their policy on to their members. A module with several paths is in float32 when any
    of them says so.

    Inputs inside lists, dicts and dataclasses are cast as well; a container that holds a 16-bit tensor is
    replaced by a copy, so a module that writes into such an argument writes into the copy.

    Args:
      model: The model, wrapped (DDP, FSDP1, torch.compile) or not.
      plan: The plan; its globs speak of paths without what wrappers add.
      device_type: The type of the device it runs on; by default that of its first parameter.
      name_of: Gives the path of a module where `model` is one part of what the plan speaks of. Globs that
        match nothing are then no cause for a warning: they may belong to another part.

    Warns:
      UserWarning: A glob matches no module; the message names the nearest paths.

    Raises:
      PlanError: This runtime cannot apply the plan.
    """
    check_plan(plan)
    paths = module_paths(model) if name_of is None else {name_of(module): module for module in model.modules()}
    policies = own_policies(plan, paths)
    unmatched = tuple(m.module for m in plan.modules if not any(match_module(m.module, path) for path in paths))
    for glob in unmatched if name_of is None else ():
        near = nearest_names(glob, paths) or sorted(path for path in paths if path)[:3]
        hint = f"; nearest: {', '.join(near)}" if near else ""
        warnings.warn(f"the plan's module {glob!r} matches no module of this model{hint}", stacklevel=2)
    if device_type is None:
        device_type = next((p.device.type for p in model.parameters()), "cpu")
    if policies:
        _keep_out_of_graphs()
    handles = [h for module, border in _borders(paths, policies, device_type) for h in border.attach(module)]
    return Islands(policies, unmatched, handles)


def forget_calls() -> None:
    """Forgets this thread's calls that will not return.

    PyTorch runs forward hooks after an `Exception` and not after a `KeyboardInterrupt`.
    """
    _stack().clear()


def _borders(
    paths: Mapping[str, nn.Module], policies: Mapping[str, Policy], device_type: str
) -> Iterator[tuple[nn.Module, _Border]]:
    """Yields the hooks of each module once; of several policies for one module, float32 wins."""
    chosen: dict[int, str] = {}
    for path, policy in policies.items():
        earlier = chosen.setdefault(id(paths[path]), path)
        if policies[earlier].compute_dtype != "float32" and policy.compute_dtype == "float32":
            chosen[id(paths[path])] = path
    for path in chosen.values():
        policy = policies[path]
        # Between two modules of one policy there is no border: `layers.**` names a layer and all its parts.
        inside = policy_around(path, paths, policies) == policy
        output = None if inside else TORCH_DTYPES[policy.output_dtype]
        yield paths[path], _Border(device_type, TORCH_DTYPES[policy.compute_dtype], output)


class _Call(NamedTuple):
    """A call under way: autocast's state before it, and whether it is part of a lower-precision region."""

    module: nn.Module
    enabled: bool
    dtype: torch.dtype
    low: bool


class _Border:
    """The hooks at the entrance and exit of a module with a policy of its own.

    Methods of a class and not closures, so that a model with islands can still be copied and pickled. The
    autocast flags are set directly: torch.compile traces that into its graph, whereas a context entered in
    one hook and left in another breaks it.
    """

    def __init__(self, device_type: str, compute: torch.dtype, output: torch.dtype | None) -> None:
        self.device_type = device_type
        self.compute = compute
        self.output = output

    def attach(self, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        """Hooks `module`."""
        # First of the pre-hooks, so that none that raises can come between: `leave` runs whatever happens.
        enter = module.register_forward_pre_hook(self.enter, with_kwargs=True, prepend=True)
        return enter, module.register_forward_hook(self.leave, always_call=True)

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Remembers the autocast state and sets the module's own."""
        stack = _stack()
        enabled = torch.is_autocast_enabled(self.device_type)
        low = enabled or (len(stack) > 0 and stack[0].enabled) or _is_recomputed()
        dtype = torch.get_autocast_dtype(self.device_type)
        stack.append(_Call(module, enabled, dtype, low))
        if self.compute is torch.float32:
            torch.set_autocast_enabled(self.device_type, False)
            return map_tensors(args, to_float32), map_tensors(kwargs, to_float32)
        if low:
            torch.set_autocast_enabled(self.device_type, True)
            torch.set_autocast_dtype(self.device_type, self.compute)
        return args, kwargs

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Restores what `enter` found; also after an exception, when there is no output."""
        stack = _stack()
        if not stack or stack[-1].module is not module:
            return output
        call = stack.pop()
        torch.set_autocast_enabled(self.device_type, call.enabled)
        torch.set_autocast_dtype(self.device_type, call.dtype)
        return map_tensors(output, self._cast) if call.low and self.output is not None else output

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.output) if tensor.dtype in TORCH_DTYPES.values() else tensor


def _stack() -> list[_Call]:
    stack: list[_Call] = _thread.__dict__.setdefault("stack", [])
    return stack


def _is_recomputed() -> bool:
    """True when a backward is running here: checkpointing repeats a forward that was in the region."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _keep_out_of_graphs() -> None:
    """Makes torch.compile run the hooks as they are wherever it does not trace the module's call as a whole.

    After a graph break inside a module its hooks run between graphs. Dynamo would compile each by itself, and
    the backend drops what it finds there: a switch that no operator follows.
    """
    from torch._dynamo.eval_frame import skip_code  # late: it takes a second, and only islands need it

    for function in (
        _Border.enter,
        _Border.leave,
        _Border._cast,
        _stack,
        _is_recomputed,
        map_tensors,
        to_float32,
    ):
        skip_code(function.__code__)

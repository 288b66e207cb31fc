# SPDX-License-Identifier: Apache-2.0
"""FSDP2 under a plan: what each parameter is gathered in, and what its gradient is summed in.

FSDP2's own mixed precision casts whole modules: norm gains and embeddings too lose their trailing bits, and so does
what flows between the modules. A plan's `compute_dtype` speaks of matrix products; the rest is autocast's choice.
Both agree on the weights that only matrix products use: autocast rounds them anyway, so rounding the shard before it
is sent gives the same bits with half the traffic and memory, and autocast keeps no cast of it to the end of the
region. These are gathered in 16 bits, all others in float32, and a sharded model trains to the bits of an unsharded
one. PyTorch plans formats per parameter as well (pytorch#196626); until then two methods of each `FSDPParam` are
replaced.

FSDP2 sums the gradients of a group in one format, and wants them all in one before. A 16-bit gradient among float32
ones therefore goes at once to the float32 tensor in which FSDP2 adds up over batches that it does not reduce.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from floatwise.errors import BadInputError
from floatwise.plan import Plan
from floatwise.tap.patches import Patches
from floatwise.torch.distributed.shards import add_in_float32, groups_of, sharded_states, start_again
from floatwise.torch.paths import module_paths
from floatwise.torch.plan_support import TORCH_DTYPES, as_plan
from floatwise.torch.policies import own_policies, policy_of

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

__all__ = ["ShardedFormats", "fully_shard_policy"]

#: Parameters that a matrix product or convolution uses and nothing else does: class → names. In autocast their forward
#: casts them to the region's dtype before they meet anything else (`cuda_lists.LOWER`).
_MATRICES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("weight", "bias"),
    nn.Conv1d: ("weight", "bias"),
    nn.Conv2d: ("weight", "bias"),
    nn.Conv3d: ("weight", "bias"),
    nn.ConvTranspose1d: ("weight", "bias"),
    nn.ConvTranspose2d: ("weight", "bias"),
    nn.ConvTranspose3d: ("weight", "bias"),
    nn.MultiheadAttention: ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
}


def fully_shard_policy(plan: Plan | str | os.PathLike[str]) -> MixedPrecisionPolicy:
    """Returns what to give `fully_shard` as `mp_policy` under a plan.

    `prepare` sets the formats of a model that is sharded in any other way, too, so this is for those who want to
    read them, or who shard without `prepare` and run the forward pass in `autocast_region`. Alone it rounds norm
    gains and embeddings, which `prepare` keeps in float32.

    FSDP2's `param_dtype` is the plan's `compute_dtype`; the shards keep the dtype they have.

    Args:
      plan: A plan, the name of a recipe, or the path of a plan file.

    Raises:
      PlanError: This runtime cannot apply the plan.
      UnknownNameError: No recipe or file has this name.
      BadFileError: The file is no plan.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    plan = as_plan(plan)
    compute = TORCH_DTYPES[plan.compute_dtype]
    return MixedPrecisionPolicy(
        param_dtype=None if compute is torch.float32 else compute,
        reduce_dtype=TORCH_DTYPES[plan.reductions.reduce_dtype],
        cast_forward_inputs=False,  # autocast casts what a product takes, and nothing else
    )


class ShardedFormats:
    """A plan's formats on FSDP2's modules.

    Args:
      plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._patches = Patches()
        self._handles: list[RemovableHandle] = []
        self._done: weakref.WeakSet[Any] = weakref.WeakSet()

    def apply(self, model: nn.Module, paths: Mapping[str, nn.Module] | None = None) -> None:
        """Sets the formats of all sharded modules in `model`, also when they have run forward before.

        Call it on every rank, not between a forward pass and its backward pass, and again when a checkpoint has
        been loaded with `assign=True`.

        Args:
          model: The model; without FSDP2's modules nothing happens.
          paths: The model's modules by path; by default `module_paths(model)`.
        """
        states = [s for s in sharded_states(model) if s not in self._done]
        if not states:
            return
        low_modules = _low_modules(self.plan, module_paths(model) if paths is None else paths)
        policy = fully_shard_policy(self.plan)
        for state in states:
            self._done.add(state)
            self._set_state(state, policy, low_modules)

    def restore(self) -> None:
        """Gives the modules back the formats they had; doing so twice is harmless."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._done.clear()
        self._patches.undo()

    def _set_state(self, state: Any, policy: MixedPrecisionPolicy, low_modules: set[nn.Module]) -> None:
        before = state._mp_policy
        # A float32 output only adds precision, and whoever asked for it counts on it.
        kept = before.output_dtype if before.output_dtype is torch.float32 else None
        policy = dataclasses.replace(policy, output_dtype=kept)
        full = dataclasses.replace(policy, param_dtype=None)
        self._patches.replace(state, "_mp_policy", lambda _: policy)
        for group in groups_of(state):
            low = [p for p in group.fsdp_params if _is_matrix(p, low_modules)]
            self._patches.on_undo(functools.partial(start_again, group))
            self._patches.replace(group, "mp_policy", lambda _: policy)
            for parameter in group.fsdp_params:
                self._set_parameter(parameter, group, policy if parameter in low else full)
            start_again(group)
            if low:
                check = _RegionCheck(state._device.type)
                self._handles += [m.register_forward_pre_hook(check) for m in state._modules]

    def _set_parameter(self, parameter: Any, group: Any, policy: MixedPrecisionPolicy) -> None:
        def dtypes(original: Any) -> Any:
            def init_dtype_attrs(_: MixedPrecisionPolicy) -> None:
                original(policy)
                # FSDP2 leaves it None where the parameter has it anyway, and wants it the same in the whole group.
                parameter.reduce_dtype = policy.reduce_dtype

            return init_dtype_attrs

        def unsharded(original: Any) -> Any:
            def init_unsharded_param() -> None:
                original()
                if parameter.sharded_param.requires_grad:
                    add_in_float32(parameter, group)

            return init_unsharded_param

        self._patches.replace(parameter, "mp_policy", lambda _: policy)
        self._patches.replace(parameter, "init_dtype_attrs", dtypes)
        self._patches.replace(parameter, "init_unsharded_param", unsharded)


class _RegionCheck:
    """A forward pre-hook: a module with 16-bit matrices must run where autocast casts what they are multiplied by."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not torch.is_autocast_enabled(self.device_type):
            raise BadInputError(
                f"got a forward pass of {type(module).__name__}, whose matrices are gathered in 16 bits, outside the "
                "plan's region; run it inside `with precision.forward():`, also for validation"
            )


def _low_modules(plan: Plan, paths: Mapping[str, nn.Module]) -> set[nn.Module]:
    """Returns the modules whose products the plan computes in 16 bits, by every path they have."""
    policies = own_policies(plan, paths)
    low: dict[nn.Module, bool] = {}
    for path, module in paths.items():
        is_low = policy_of(path, plan, paths, policies).compute_dtype != "float32"
        low[module] = low.get(module, True) and is_low
    return {module for module, is_low in low.items() if is_low}


def _is_matrix(parameter: Any, low_modules: set[nn.Module]) -> bool:
    """True when only products use an `FSDPParam`, and all of those that do are computed in 16 bits."""
    info = parameter._module_info
    users = [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names, strict=True)]
    is_float = parameter.sharded_param.is_floating_point()
    return is_float and all(m in low_modules and name in _matrices_of(m) for m, name in users)


def _matrices_of(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of the parameters in products, none when the forward is not PyTorch's own."""
    if "forward" in vars(module):
        return ()
    return next((names for cls, names in _MATRICES.items() if type(module).forward is cls.forward), ())

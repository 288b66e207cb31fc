# SPDX-License-Identifier: Apache-2.0
"""Which policy of a plan a module of a model has."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from floatwise.plan import Plan, Policy, match_module

__all__ = ["own_policies", "policy_around", "policy_of"]


def own_policies(plan: Plan, paths: Mapping[str, nn.Module]) -> dict[str, Policy]:
    """Returns the policy of every module that the plan names, or that stands in a container it names."""
    own: dict[str, Policy] = {}
    for path in paths:  # parents come before what is below them
        entry = next((m for m in reversed(plan.modules) if match_module(m.module, path)), None)
        parent = path.rpartition(".")[0]
        if entry is not None:
            own[path] = entry.policy
        elif path and parent in own and _is_never_called(paths[parent]):
            own[path] = own[parent]
    return own


def policy_around(path: str, paths: Mapping[str, nn.Module], policies: Mapping[str, Policy]) -> Policy | None:
    """Returns the policy of the nearest called module around a path that has one of its own."""
    while path:
        path = path.rpartition(".")[0]
        if path in policies and not _is_never_called(paths[path]):
            return policies[path]
    return None


def policy_of(path: str, plan: Plan, paths: Mapping[str, nn.Module], policies: Mapping[str, Policy]) -> Policy:
    """Returns the policy in force at a path: its own, else the nearest one around it, else the plan's default.

    Args:
      path: Of a module in `paths`.
      plan: The plan.
      paths: The modules of the model.
      policies: What `own_policies` gave for them.
    """
    return policies.get(path) or policy_around(path, paths, policies) or plan.policy


def _is_never_called(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.ModuleDict))

# SPDX-License-Identifier: Apache-2.0
"""A training that is open under a plan, computed as matrix units would, with nothing left behind afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from floatwise.plan import Plan
from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.float8_script import without_float8
from floatwise.rehearse.module_trace import ModuleTrace
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.training import MakeTraining, Training
from floatwise.tap.walk import walk_modules
from floatwise.torch.plan_support import TORCH_DTYPES
from floatwise.torch.prepare import Precision, prepare

__all__ = ["Run", "all_finite", "gradients_of", "opened", "parameters_of"]


@dataclass(frozen=True)
class Run:
    """A training under a plan.

    Attributes:
      training: The training.
      precision: The plan in force, but for its float8 products.
      trace: Follows the calls of the model's modules.
      parameters: The trainable parameters by path.
      float8: The layers that multiply in float8; None under other plans.
    """

    training: Training
    precision: Precision
    trace: ModuleTrace
    parameters: dict[str, nn.Parameter]
    float8: Float8Linears | None = None


@contextmanager
def opened(make_training: MakeTraining, plan: Plan, seed: int, samples: bool = False) -> Iterator[Run]:
    """Makes a training from a seed and puts a plan in force, until the block ends.

    Args:
      make_training: Makes it.
      plan: The plan.
      seed: What the random state is seeded with before the training is made. The caller's own comes back after.
      samples: Whether to keep samples of what modules take and return.

    Raises:
      PlanError: This runtime cannot apply the plan.
    """
    beside = without_float8(plan)
    dtype = TORCH_DTYPES[beside.compute_dtype]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(seed)
        training = make_training()
        trace = ModuleTrace(training.model, samples)
        stack.callback(trace.close)
        if dtype is not torch.float32:
            stack.enter_context(MatrixUnits([dtype]))
            stack.enter_context(CudaSpecials())
        precision = prepare(training.model, training.optimizer, beside)
        stack.callback(precision.close)
        float8 = None
        if plan.scaling is not None:
            float8 = stack.enter_context(Float8Linears(training.model, plan))
        yield Run(training, precision, trace, parameters_of(training.model), float8)


def parameters_of(model: nn.Module, name_of: Callable[[nn.Module], str] | None = None) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters by path; one that has several comes under the first.

    Args:
      model: The model.
      name_of: Gives the path of a module where `model` is one of several.
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for own, module in walk_modules(model):
        path = own if name_of is None else name_of(module)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{path}.{name}" if path else name] = parameter
    return found


def gradients_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Returns the gradients that are there, sparse ones as dense tensors."""
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    return {name: grad.to_dense() if grad.is_sparse else grad for name, grad in gradients.items()}


def all_finite(tensors: list[Tensor]) -> bool:
    """Returns whether every value is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

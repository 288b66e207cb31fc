# SPDX-License-Identifier: Apache-2.0
"""How the failures are run: the plans, and 16-bit arithmetic as CUDA's autocast chooses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from floatwise.plan import LossScale, Plan, Policy, Weights, recipe
from floatwise.plan.recipe_table import Master
from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.islands import judge_by_rehearsal
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.training import MakeTraining
from floatwise.rehearse.verdict import Verdict
from floatwise.torch.cuda_policy import CudaPolicy

__all__ = ["FLOAT16", "MIXED", "UNSCALED", "judged", "matrix_units", "reasons", "with_masters"]

FLOAT16 = recipe("fp16-mixed")
#: What Micikevicius et al. 2018 compare with: float16 products and no loss scale.
UNSCALED = recipe("fp16-mixed", loss_scale=LossScale(mode="static", initial_scale=1.0))
#: 16-bit products of float32 weights, by format.
MIXED = {"float16": FLOAT16, "bfloat16": recipe("bf16-mixed")}


def with_masters(master: Master) -> Plan:
    """Returns the plan of bfloat16 weights whose updates are kept exact, or nearly so, in one of the ways."""
    policy = Policy(param_dtype="bfloat16", compute_dtype="bfloat16", output_dtype="float32")
    return recipe("bf16-master", policy=policy, weights=Weights(master=master))


@contextmanager
def matrix_units(dtype: torch.dtype) -> Iterator[None]:
    """Computes in a format as CUDA's autocast would."""
    with ExitStack() as stack:
        stack.enter_context(MatrixUnits([dtype]))
        stack.enter_context(CudaPolicy())
        stack.enter_context(CudaSpecials())
        stack.enter_context(torch.autocast("cpu", dtype))
        yield


def judged(make: MakeTraining, fmt: str, steps: int = 6) -> Verdict:
    """Returns the verdict on products in a format with float32 weights."""
    return judge_by_rehearsal(make, MIXED[fmt], steps)


def reasons(verdict: Verdict) -> list[str]:
    """Returns the codes of what speaks against the plan."""
    return [reason.code for reason in verdict.reasons]

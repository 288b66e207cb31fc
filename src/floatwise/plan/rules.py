# SPDX-License-Identifier: Apache-2.0
"""Which plans contradict themselves, and why: one row per combination that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from floatwise.plan.dtypes import FLOAT8_FORMATS, SIXTEEN_BIT_FORMATS
from floatwise.plan.problems import Conflict, Loc, Rule
from floatwise.plan.recipe_table import RECIPE_TABLE, RecipeRow

if TYPE_CHECKING:
    from floatwise.plan.model import Plan, Policy

__all__ = ["PLAN_RULES"]

_LOSS_SCALE_LINES = '[loss_scale]\nmode = "dynamic"\ninitial_scale = 65536.0'


def _policies(plan: Plan) -> Iterator[tuple[Loc, Policy]]:
    yield ("policy",), plan.policy
    for i, entry in enumerate(plan.modules):
        yield ("modules", i, "policy"), entry.policy


def _float16_gradients(plan: Plan) -> Iterator[Loc]:
    """Yields where gradients are float16: they have the format of the values they belong to."""
    for loc, policy in _policies(plan):
        for key in ("param_dtype", "compute_dtype", "output_dtype"):
            if getattr(policy, key) == "float16":
                yield (*loc, key)
    for key in ("reduce_dtype", "accumulate_dtype"):
        if getattr(plan.reductions, key) == "float16":
            yield ("reductions", key)


def _float16_needs_loss_scale(plan: Plan) -> Iterator[Conflict]:
    where = next(_float16_gradients(plan), None)
    if where and plan.loss_scale is None:
        yield Conflict(where, 'got "float16" without a loss scale', f"add these lines:\n{_LOSS_SCALE_LINES}")


def _loss_scale_without_float16(plan: Plan) -> Iterator[Conflict]:
    if plan.loss_scale is not None and next(_float16_gradients(plan), None) is None:
        yield Conflict(
            ("loss_scale",),
            f'got a loss scale while compute_dtype is "{plan.compute_dtype}" and no gradient is float16',
            'delete the table [loss_scale], or write compute_dtype = "float16"',
        )


def _stalling_weights(plan: Plan) -> Iterator[Conflict]:
    if plan.weights.master != "none":
        return
    for loc, policy in _policies(plan):
        if policy.param_dtype in SIXTEEN_BIT_FORMATS:
            master = "split" if policy.param_dtype == "bfloat16" else "float32"
            yield Conflict(
                (*loc, "param_dtype"),
                f'got "{policy.param_dtype}" while weights.master is "none"',
                f'write master = "{master}" in [weights], or param_dtype = "float32" here',
            )


def _master_of_float32(plan: Plan) -> Iterator[Conflict]:
    if plan.weights.master != "none" and all(p.param_dtype == "float32" for _, p in _policies(plan)):
        yield Conflict(
            ("weights", "master"),
            f'got "{plan.weights.master}" while every param_dtype is "float32"',
            'write master = "none" here, or param_dtype = "bfloat16" in [policy]',
        )


def _split_float16(plan: Plan) -> Iterator[Conflict]:
    if plan.weights.master == "split" and any(p.param_dtype == "float16" for _, p in _policies(plan)):
        yield Conflict(
            ("weights", "master"), 'got "split" while a param_dtype is "float16"', 'write master = "float32"'
        )


def _float8_needs_scaling(plan: Plan) -> Iterator[Conflict]:
    if plan.compute_dtype in FLOAT8_FORMATS and plan.scaling is None:
        yield Conflict(
            ("policy", "compute_dtype"),
            f'got "{plan.compute_dtype}" without `scaling`',
            'add this line above the tables:\nscaling = "tensorwise"',
        )


def _scaling_without_float8(plan: Plan) -> Iterator[Conflict]:
    if plan.scaling is not None and plan.compute_dtype not in FLOAT8_FORMATS:
        yield Conflict(
            ("scaling",),
            f'got "{plan.scaling}" while compute_dtype is "{plan.compute_dtype}"',
            'delete this line, or write compute_dtype = "float8_e4m3fn" in [policy]',
        )


def _float8_module(plan: Plan) -> Iterator[Conflict]:
    for i, entry in enumerate(plan.modules):
        if entry.policy.compute_dtype in FLOAT8_FORMATS:
            yield Conflict(
                ("modules", i, "policy", "compute_dtype"),
                f'got "{entry.policy.compute_dtype}" for some modules only',
                "make float8 the compute_dtype of [policy], and list here the modules that stay "
                'in "bfloat16" or "float32"',
            )


def _sixteen_bit_formats(plan: Plan) -> Iterator[tuple[Loc, str]]:
    for loc, policy in _policies(plan):
        for key in ("compute_dtype", "param_dtype", "output_dtype"):
            name = getattr(policy, key)
            if name in SIXTEEN_BIT_FORMATS or name in FLOAT8_FORMATS:
                yield (*loc, key), "bfloat16" if name in FLOAT8_FORMATS else name
    if plan.reductions.buffer_dtype in SIXTEEN_BIT_FORMATS:
        yield ("reductions", "buffer_dtype"), plan.reductions.buffer_dtype


def _two_sixteen_bit_formats(plan: Plan) -> Iterator[Conflict]:
    first: str | None = None
    for loc, name in _sixteen_bit_formats(plan):
        first = first or name
        if name != first:
            yield Conflict(
                loc,
                f'got "{name}" in a plan whose 16-bit format is "{first}"',
                f'write "{first}" or "float32" here',
            )


def _same_modules_twice(plan: Plan) -> Iterator[Conflict]:
    seen: dict[str, int] = {}
    for i, entry in enumerate(plan.modules):
        if entry.module in seen:
            yield Conflict(
                ("modules", i, "module"),
                f"got {entry.module!r} a second time",
                f"delete this entry or modules[{seen[entry.module]}]",
            )
        seen[entry.module] = i


def _recipe_contradicted(plan: Plan) -> Iterator[Conflict]:
    row = RECIPE_TABLE[plan.recipe]
    differences = list(_differences(plan, row))
    if differences:
        others = [name for name, other in RECIPE_TABLE.items() if not list(_differences(plan, other))]
        fitting = f'write recipe = "{others[0]}", or ' if others else ""
        yield Conflict(
            ("recipe",),
            f'got "{plan.recipe}" while ' + " and ".join(got for got, _ in differences),
            f"{fitting}write " + " and ".join(instead for _, instead in differences),
        )


def _differences(plan: Plan, row: RecipeRow) -> Iterator[tuple[str, str]]:
    """Yields what in the plan is not as the recipe says, and what would be."""
    float8 = row.compute_dtype in FLOAT8_FORMATS
    if plan.compute_dtype != row.compute_dtype and not (float8 and plan.compute_dtype in FLOAT8_FORMATS):
        yield f'compute_dtype is "{plan.compute_dtype}"', f'compute_dtype = "{row.compute_dtype}"'
    # torchao trains float8 with either kind of weights.
    if plan.policy.param_dtype != row.param_dtype and not float8:
        yield f'param_dtype is "{plan.policy.param_dtype}"', f'param_dtype = "{row.param_dtype}"'
    if plan.scaling not in (None, row.scaling) and float8:
        yield f'scaling is "{plan.scaling}"', f'scaling = "{row.scaling}"'
    # Below float32 TF32 concerns only what stays in float32, as it may in any recipe.
    if plan.float32_matmul != row.float32_matmul and row.compute_dtype == "float32":
        yield f'float32_matmul is "{plan.float32_matmul}"', f'float32_matmul = "{row.float32_matmul}"'


_FORMATS = frozenset({"policy", "modules"})

PLAN_RULES = (
    Rule(
        "recipe_contradicted",
        frozenset({"recipe", "policy", "scaling", "float32_matmul"}),
        _recipe_contradicted,
        why="the name is what reports and people go by, and it would promise something else",
        source="convention",
    ),
    Rule(
        "float16_needs_loss_scale",
        _FORMATS | {"loss_scale", "reductions"},
        _float16_needs_loss_scale,
        why="gradients of 2**-25 or less become zero in float16, and the loss looks healthy meanwhile",
        source="Micikevicius et al. 2018, arXiv 1710.03740, section 3.2; pytorch/pytorch#163519, reproduced",
    ),
    Rule(
        "loss_scale_without_float16",
        _FORMATS | {"loss_scale", "reductions"},
        _loss_scale_without_float16,
        why="bfloat16 has float32's exponents and float8 products scale themselves: there is no underflow to "
        "prevent, and an overflow of the scaled loss would skip steps",
        source="Kalamkar et al. 2019, arXiv 1905.12322",
    ),
    Rule(
        "stalling_weights",
        _FORMATS | {"weights"},
        _stalling_weights,
        why="updates under half an ulp of a weight are lost (any below 2**-9 of it in bfloat16, 2**-12 in "
        "float16), so training stalls while the loss still looks plausible",
        source="Micikevicius et al. 2018, section 3.1; Zamirai et al. 2020, arXiv 2010.06192; "
        "measured: norm weights of a small GPT moved by 0.000 in bfloat16",
    ),
    Rule(
        "master_of_float32",
        _FORMATS | {"weights"},
        _master_of_float32,
        why="float32 weights are their own master weights: there is nothing to keep beside them",
        source="definition",
    ),
    Rule(
        "split_float16",
        _FORMATS | {"weights"},
        _split_float16,
        why="only a bfloat16 is the upper half of a float32, which 16 more bits complete",
        source="formats table: float32 and bfloat16 share sign and exponent fields",
    ),
    Rule(
        "float8_needs_scaling",
        frozenset({"policy", "scaling"}),
        _float8_needs_scaling,
        why="float8 spans too few powers of two for unscaled tensors: they would saturate or vanish",
        source="Micikevicius et al. 2022, arXiv 2209.05433",
    ),
    Rule(
        "scaling_without_float8",
        frozenset({"policy", "scaling"}),
        _scaling_without_float8,
        why="scaling belongs to float8 operands, and this plan has none",
        source="definition",
    ),
    Rule(
        "float8_module",
        _FORMATS,
        _float8_module,
        why="float8 training converts every linear layer but those it is told to leave out",
        source="torchao.float8.convert_to_float8_training and its module_filter_fn",
    ),
    Rule(
        "two_sixteen_bit_formats",
        _FORMATS | {"reductions"},
        _two_sixteen_bit_formats,
        why="a cast between float16 and bfloat16 loses either range or three bits, and one run has one "
        "autocast format: a weight cast for one cannot serve the other",
        source="nested autocast with a second format on one weight raises (reproduced on torch 2.13)",
    ),
    Rule(
        "same_modules_twice",
        frozenset({"modules"}),
        _same_modules_twice,
        why="later entries win, so the earlier one would say nothing",
        source="definition",
    ),
)
"""Combinations of a plan's values that are refused."""

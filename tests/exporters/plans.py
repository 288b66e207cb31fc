# SPDX-License-Identifier: Apache-2.0
"""Random plans that are legal, for properties of exporters."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from floatwise.errors import PlanError
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, Reductions, Weights, recipe
from floatwise.plan.recipe_table import RECIPE_TABLE, RecipeRow

__all__ = ["plans"]

GLOBS = ("head", "blocks.*.norm[12]", "encoder.**", "(root)", "blocks.0.attention")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draws a legal plan of any recipe with most of its other values changed."""
    name = draw(st.sampled_from(sorted(RECIPE_TABLE)))
    row = RECIPE_TABLE[name]
    sixteen = "float16" if row.compute_dtype == "float16" else "bfloat16"
    store = st.sampled_from(("float32", sixteen) if row.compute_dtype != "float32" else ("float32",))
    params = draw(store) if row.scaling else row.param_dtype
    values: dict[str, Any] = {
        "policy": Policy(param_dtype=params, compute_dtype=row.compute_dtype, output_dtype=draw(store)),
        "weights": Weights(master=draw(_masters(row, params))),
        "reductions": Reductions(reduce_dtype=draw(store), accumulate_dtype=draw(store), buffer_dtype=draw(store)),
        "modules": draw(_modules(row, params)),
        "target": draw(st.sampled_from(("", "nvidia-a100"))),
        "script": draw(st.sampled_from(("", "train.py"))),
    }
    if row.compute_dtype != "float32":
        values["float32_matmul"] = draw(st.sampled_from(("ieee", "tf32")))
    if row.compute_dtype == "float16":
        values["loss_scale"] = draw(_scales())
    try:
        return recipe(name, **values)
    except PlanError:
        assume(False)
        raise


def _masters(row: RecipeRow, params: str) -> st.SearchStrategy[Any]:
    if params == "float32":
        return st.just("none")
    kinds = ("float32", "kahan", "stochastic") + (("split",) if params == "bfloat16" else ())
    return st.sampled_from(kinds)


def _modules(row: RecipeRow, params: str) -> st.SearchStrategy[tuple[ModulePolicy, ...]]:
    if row.compute_dtype == "float32":
        return st.just(())
    sixteen = "float16" if row.compute_dtype == "float16" else "bfloat16"
    entry = st.builds(
        ModulePolicy,
        module=st.sampled_from(GLOBS),
        policy=st.builds(
            Policy,
            param_dtype=st.sampled_from(tuple({"float32", params})),
            compute_dtype=st.sampled_from(("float32", sixteen)),
            output_dtype=st.sampled_from(("float32", sixteen)),
        ),
        reason=st.sampled_from(("", "overflows")),
    )
    return st.lists(entry, max_size=2, unique_by=lambda e: e.module).map(tuple)


def _scales() -> st.SearchStrategy[LossScale]:
    return st.builds(
        LossScale,
        mode=st.sampled_from(("dynamic", "static")),
        initial_scale=st.integers(1, 24).map(lambda n: 2.0**n),
        growth_factor=st.sampled_from((2.0, 4.0, 1.5)),
        backoff_factor=st.sampled_from((0.5, 0.25)),
        growth_interval=st.sampled_from((100, 1000, 2000)),
        growth=st.sampled_from(("headroom", "fixed")),
        headroom_bits=st.sampled_from((2, 4)),
        hysteresis=st.sampled_from((1, 2, 3)),
        floor=st.sampled_from((2.0**-4, 1.0, 2.0)),
        ceiling=st.sampled_from((2.0**24, 2.0**30)),
        window_log2=st.sampled_from((None, (3, 20))),
    )

# SPDX-License-Identifier: Apache-2.0
"""Whether a training step in float16 really scales its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from floatwise.census import Finding
from floatwise.jax.census.walk import inner_jaxprs, over_arrays, walk
from floatwise.jax.dtypes import is_floating
from floatwise.language import Text

__all__ = ["LossScaling", "loss_scaling"]

# Classes that hold a loss scale: of Floatwise, Flax (flax.training.dynamic_scale), jmp and mpx.
_HOLDERS = frozenset({"LossScale", "DynamicScale", "DynamicLossScale", "StaticLossScale", "DynamicLossScaling"})
_PRODUCTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})

_MISSING = Finding(
    "loss_scale_missing",
    (),
    Text(
        "The step multiplies in float16 and none of its arguments is a loss scale: gradients of 2**-25 and less become "
        "zero, while the loss looks healthy. Pass a floatwise.jax.LossScale through the step, or use bfloat16.",
        "该训练步含 float16 乘法，而参数中没有损失缩放：不大于 2**-25 的梯度会变成零，损失却看似正常。"
        "请在训练步中传入 floatwise.jax.LossScale，或改用 bfloat16。",
    ),
)
_UNUSED = Finding(
    "loss_scale_unused",
    (),
    Text(
        "The step is given a loss scale, but no float16 product of its backward pass depends on it: the loss is not "
        "multiplied by it, or gradients are not taken of the scaled loss. Use floatwise.jax.value_and_grad.",
        "训练步收到了损失缩放，但反向传播中没有任何 float16 乘法依赖它：要么损失没有乘以该缩放，要么求导的不是缩放后的"
        "损失。请使用 floatwise.jax.value_and_grad。",
    ),
)


@dataclass(frozen=True)
class LossScaling:
    """Whether loss scaling is needed and there.

    Attributes:
      state: `not_needed` (no product is float16), `present`, `missing` (no argument is a loss scale), `unused` (one is,
        but it reaches no float16 product) or `fixed` (one is, but as a constant, which cannot be followed; so
        jmp's `StaticLossScale`).
      float16_products: How many products are float16.
      scaled_products: How many of them depend on the loss scale: those of the backward pass.
      findings: What to do about it; empty when all is well.
    """

    state: Literal["not_needed", "present", "missing", "unused", "fixed"]
    float16_products: int
    scaled_products: int
    findings: tuple[Finding, ...]


def loss_scaling(step: Any, *args: Any, **kwargs: Any) -> LossScaling:
    """Returns whether a training step scales its loss, from the way the scale takes through the traced program.

    A scale is looked for among the arguments: `floatwise.jax.LossScale`, Flax's `DynamicScale`, and jmp's and mpx's
    classes. A number written into the step is not seen.

    Args:
      step: The training step, jitted or not; it must take gradients.
      *args: Its arguments.
      **kwargs: More of them.
    """
    given = any(map(_holds, jax.tree.leaves((args, kwargs), is_leaf=_holds)))
    (args, kwargs), tainted = _marked((args, kwargs))
    of_arrays, arrays = over_arrays(step, args, kwargs)
    jaxpr = jax.make_jaxpr(of_arrays)(*arrays).jaxpr
    products = sum(_is_float16_product(equation) for equation, _, _ in walk(jaxpr))
    _, reached = _spread(jaxpr, tainted)
    if not products:
        return LossScaling("not_needed", 0, 0, ())
    if not given:
        return LossScaling("missing", products, 0, (_MISSING,))
    if not any(tainted):
        return LossScaling("fixed", products, 0, ())
    if not reached:
        return LossScaling("unused", products, 0, (_UNUSED,))
    return LossScaling("present", products, len(reached), ())


def _holds(node: Any) -> bool:
    return type(node).__name__ in _HOLDERS


def _marked(tree: Any) -> tuple[Any, list[bool]]:
    """Returns a tree with the numbers in loss scales as arrays, and for each of its arrays whether it is one of these.

    Of a loss scale every floating value is marked: bounds and what else there is reach no product.
    """
    nodes, structure = jax.tree.flatten(tree, is_leaf=_holds)
    nodes = [jax.tree.map(jnp.asarray, node) if _holds(node) else node for node in nodes]
    marks = [
        _holds(node) and is_floating(leaf)
        for node in nodes
        for leaf in jax.tree.leaves(node)
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    ]
    return jax.tree.unflatten(structure, nodes), marks


def _spread(jaxpr: Any, tainted: list[bool]) -> tuple[list[bool], set[int]]:
    """Returns which results of a jaxpr depend on its marked arguments, and the float16 products that do."""
    marked = {variable for variable, is_marked in zip(jaxpr.invars, tainted, strict=True) if is_marked}
    reached: set[int] = set()
    for equation in jaxpr.eqns:
        into = [not hasattr(variable, "val") and variable in marked for variable in equation.invars]
        if not any(into):
            continue
        if _is_float16_product(equation):
            reached.add(id(equation))
        outs = [True] * len(equation.outvars)
        inner = list(inner_jaxprs(equation))
        if inner:
            outs = _spread_inside(equation, inner, into, reached)
        marked |= {variable for variable, is_marked in zip(equation.outvars, outs, strict=True) if is_marked}
    return [not hasattr(variable, "val") and variable in marked for variable in jaxpr.outvars], reached


def _spread_inside(equation: Any, inner: list[Any], into: list[bool], reached: set[int]) -> list[bool]:
    """As `_spread`, for an equation with jaxprs inside: their arguments are its last ones, of `while` all."""
    outs = [False] * len(equation.outvars)
    for jaxpr in inner:
        own = into[-len(jaxpr.invars) :] if jaxpr.invars else []
        if len(own) < len(jaxpr.invars) or equation.primitive.name in ("while", "scan"):
            own = [any(into)] * len(jaxpr.invars)  # what comes round in a loop may carry it anywhere
        results, more = _spread(jaxpr, own)
        reached |= more
        aligned = results if len(results) == len(outs) else [any(results)] * len(outs)
        outs = [before or now for before, now in zip(outs, aligned, strict=True)]
    return outs


def _is_float16_product(equation: Any) -> bool:
    return equation.primitive.name in _PRODUCTS and any(
        str(getattr(variable.aval, "dtype", "")) == "float16" for variable in equation.invars
    )

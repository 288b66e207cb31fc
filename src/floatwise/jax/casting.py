# SPDX-License-Identifier: Apache-2.0
"""A function of parameters that computes in lower precision, as a pure function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from floatwise.errors import BadInputError
from floatwise.jax.dtypes import is_floating, jax_dtype, to_dtype
from floatwise.jax.leaf_formats import LeafFormats
from floatwise.jax.loss_scale import LossScale
from floatwise.jax.paths import leaf_path
from floatwise.jax.policy_text import PolicyLike
from floatwise.plan import Plan

__all__ = ["cast", "cast_params", "island"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def cast(
    fn: _Function, policy: PolicyLike, *, keep_float32: Sequence[str] = (), keep_argnums: Sequence[int] = ()
) -> _Function:
    """Returns `fn` computing in the formats of a policy or a plan.

    Every floating leaf of every argument is cast to the compute format of its place, inside the function: so gradients
    with respect to the arguments come back in the format that these are stored in. Floating results are cast to the
    output format. Integers, booleans, PRNG keys, float8 arrays, a `LossScale`, Flax's `batch_stats` and whatever is no
    array pass as they are.

    It is a plain function of the same arguments: it works under `jit`, `grad`, `vmap`, `scan`, `pmap` and `shard_map`.

    What stays in float32 promotes what it meets: `norm(h)` with float32 weights is float32, and so is all after it.
    Wrap such a part with `island`, and let `floatwise.jax.leaks` look whether one was forgotten.

    ```python
    loss_fn = fw.jax.cast(loss_fn, "params=float32,compute=bfloat16,output=float32", keep_float32=["*norm*", "head"])
    ```

    Args:
      fn: The function; all its floating arguments are cast, parameters and inputs alike.
      policy: A policy's text, a recipe's name, a `Policy` or a `Plan`. A plan's islands are kept, and products of
        float32 operands are computed as its `float32_matmul` says: JAX's own default for them is TF32 on NVIDIA GPUs
        and bfloat16 on TPUs (`jax.default_matmul_precision`).
      keep_float32: Globs of leaves, or of what is around them, that stay in float32: a glob of one name covers that
        name anywhere, one with dots begins at the root of an argument. Default: none.
      keep_argnums: Positional arguments that pass as they are, such as float targets or running statistics. Default:
        none.

    Raises:
      BadInputError: A glob or the text is malformed; when called: a glob covers nothing, or an argument is an nnx
        module, whose changes would be lost.
      UnknownNameError: There is no such format or recipe.
      PlanError: Arithmetic in float8.
    """
    formats = LeafFormats(policy, keep_float32)
    output = jax_dtype(formats.default.output_dtype)

    @functools.wraps(fn)
    def computing(*args: Any, **kwargs: Any) -> Any:
        trees = [*args, *kwargs.values()]
        _refuse_nnx(trees)
        if formats.keep_float32:
            formats.check_used(
                leaf_path(keys)
                for tree in trees
                for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
                if is_floating(leaf)
            )
        trees = [
            tree if number < len(args) and number in keep_argnums else _cast_tree(tree, formats, "compute_dtype")
            for number, tree in enumerate(trees)
        ]
        with _products(formats.plan):
            result = fn(*trees[: len(args)], **dict(zip(kwargs, trees[len(args) :], strict=True)))
        return jax.tree.map(lambda leaf: to_dtype(leaf, output), result)

    return computing  # type: ignore[return-value]


def cast_params(params: Any, policy: PolicyLike, *, keep_float32: Sequence[str] = ()) -> Any:
    """Returns parameters in the formats that a policy or a plan stores them in (`param_dtype`).

    Args:
      params: A tree of arrays; other leaves stay as they are.
      policy: As for `cast`.
      keep_float32: As for `cast`.

    Raises:
      BadInputError: A glob or the text is malformed, or a glob covers nothing.
    """
    formats = LeafFormats(policy, keep_float32)
    formats.check_used(leaf_path(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(params))
    return _cast_tree(params, formats, "param_dtype")


def island(fn: _Function) -> _Function:
    """Returns `fn` computing in float32 and giving its floating results in the format of its first floating argument.

    What is around it goes on in lower precision: `norm = fw.jax.island(layer_norm)`.
    """

    @functools.wraps(fn)
    def computing(*args: Any, **kwargs: Any) -> Any:
        outside = next((leaf.dtype for leaf in jax.tree.leaves((args, kwargs)) if is_floating(leaf)), jnp.float32)
        wide_args, wide_kwargs = jax.tree.map(lambda leaf: to_dtype(leaf, jnp.float32), (args, kwargs))
        return jax.tree.map(lambda leaf: to_dtype(leaf, outside), fn(*wide_args, **wide_kwargs))

    return computing  # type: ignore[return-value]


def _cast_tree(tree: Any, formats: LeafFormats, field: str) -> Any:
    def cast_leaf(keys: tuple[Any, ...], leaf: Any) -> Any:
        if not is_floating(leaf) or (len(keys) > 1 and getattr(keys[0], "key", None) == "batch_stats"):
            return leaf
        return to_dtype(leaf, jax_dtype(getattr(formats.at(leaf_path(keys)), field)))

    return jax.tree_util.tree_map_with_path(cast_leaf, tree, is_leaf=lambda node: isinstance(node, LossScale))


def _products(plan: Plan | None) -> AbstractContextManager[Any]:
    if plan is None:
        return nullcontext()
    name = "tensorfloat32" if plan.float32_matmul == "tf32" else "float32"
    precision: AbstractContextManager[Any] = jax.default_matmul_precision(name)
    return precision


def _refuse_nnx(arguments: Sequence[Any]) -> None:
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and any(isinstance(argument, nnx.Module) for argument in arguments):
        raise BadInputError(
            "got an nnx module, of which the function would change a copy; give its state instead: "
            "graphdef, state = nnx.split(model), and nnx.merge(graphdef, state) inside the function; "
            "or set the formats of the model itself: floatwise.jax.set_nnx_dtypes(model, policy)"
        )

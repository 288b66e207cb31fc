# SPDX-License-Identifier: Apache-2.0
"""Flax modules in the formats of a policy or a plan: linen and nnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from floatwise.errors import BadInputError, MissingPackageError
from floatwise.jax.casting import cast
from floatwise.jax.dtypes import jax_dtype, to_dtype
from floatwise.jax.leaf_formats import LeafFormats
from floatwise.jax.policy_text import PolicyLike

try:
    from flax import linen, nnx
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingPackageError(
        "this needs Flax, which is not installed in this environment: pip install flax"
    ) from error

__all__ = ["flax_dtypes", "linen_apply", "set_nnx_dtypes"]


def flax_dtypes(policy: PolicyLike, module: str = "", *, keep_float32: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what to pass to the constructor of a linen or nnx module: `dtype` and `param_dtype`.

    Without `dtype`, Flax's modules compute in the widest format of their inputs and weights: a bfloat16 input to a
    `Dense` with float32 weights gives float32.

    ```python
    nn.Dense(64, **fw.jax.flax_dtypes("params=float32,compute=bfloat16,output=float32"))
    ```

    Args:
      policy: A policy's text, a recipe's name, a `Policy` or a `Plan`.
      module: The module's path, for a plan or `keep_float32` that names modules. Default: the root.
      keep_float32: Globs of modules that stay in float32; see `cast`.
    """
    own = LeafFormats(policy, keep_float32).at(module)
    return {"dtype": jax_dtype(own.compute_dtype), "param_dtype": jax_dtype(own.param_dtype)}


def linen_apply(module: linen.Module, policy: PolicyLike, *, keep_float32: Sequence[str] = ()) -> Callable[..., Any]:
    """Returns `module.apply` computing in the formats of a policy or a plan, for a module that was built without.

    Weights are cast as by `cast`, and what each submodule is called with is cast to the format of its place: so the
    module after a float32 one goes on in lower precision. Modules with a `dtype` of their own keep to it. Collections
    other than `params` (running statistics) pass as they are.

    Args:
      module: A linen module.
      policy: As for `cast`.
      keep_float32: Globs of module paths or names that stay in float32.

    Returns:
      A function of what `module.apply` takes.
    """
    formats = LeafFormats(policy, keep_float32)

    def intercept(following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        if context.method_name == "__call__" and getattr(context.module, "dtype", None) is None:
            dtype = jax_dtype(formats.at(".".join(context.module.path)).compute_dtype)
            args, kwargs = jax.tree.map(lambda leaf: to_dtype(leaf, dtype), (args, kwargs))
        return following(*args, **kwargs)

    def apply(variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        others = {name: value for name, value in variables.items() if name != "params"}

        def run(params: Any, *args: Any, **kwargs: Any) -> Any:
            with linen.intercept_methods(intercept):
                return module.apply({"params": params, **others}, *args, **kwargs)

        return cast(run, policy, keep_float32=keep_float32)(variables.get("params", {}), *args, **kwargs)

    return apply


def set_nnx_dtypes(model: nnx.Module, policy: PolicyLike, *, keep_float32: Sequence[str] = ()) -> dict[str, str]:
    """Makes the modules of an nnx model compute in the formats of a policy or a plan, in place.

    Every module that has a `dtype` gets the one of its place; weights stay as they are stored. Call it outside of
    `jit`. Outputs are in the format of the last module: cast logits to float32 for the loss, or keep the head there.

    Args:
      model: An nnx model.
      policy: As for `cast`.
      keep_float32: Globs of module paths or names that stay in float32.

    Returns:
      The format that each module path was given.

    Raises:
      BadInputError: No module of the model has a `dtype`, or a glob covers none that has.
    """
    formats = LeafFormats(policy, keep_float32)
    modules = {".".join(map(str, path)): module for path, module in nnx.iter_modules(model) if hasattr(module, "dtype")}
    if not modules:
        raise BadInputError("got an nnx model of which no module has a dtype; cast its state: floatwise.jax.cast")
    formats.check_used(modules)
    for path, module in modules.items():
        module.dtype = jax_dtype(formats.at(path).compute_dtype)
    return {path: formats.at(path).compute_dtype for path in modules}

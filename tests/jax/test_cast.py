# SPDX-License-Identifier: Apache-2.0
"""A function cast to a policy: what is cast, what is left alone, and under which of JAX's transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import floatwise as fw
from floatwise.errors import BadInputError, PlanError
from floatwise.jax.paths import covers, leaf_path

BF16 = "params=float32,compute=bfloat16,output=float32"


def names(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: str(getattr(leaf, "dtype", type(leaf).__name__)), tree)


def seen(policy: Any, *args: Any, **options: Any) -> Any:
    """Returns what a cast function was called with, by dtype."""
    inside: list[Any] = []

    def look(*inner: Any) -> Any:
        inside.append(names(inner))
        return jnp.float32(0)

    fw.jax.cast(look, policy, **options)(*args)
    return inside[0]


def params() -> dict[str, Any]:
    return {
        "blocks": [{"norm1": {"scale": jnp.ones(2)}, "dense": {"w": jnp.ones((2, 2))}} for _ in range(2)],
        "head": {"w": jnp.ones((2, 2))},
    }


def test_floating_leaves_are_cast_and_nothing_else() -> None:
    given = {
        "weight": jnp.ones(2),
        "numpy": np.ones(2, np.float32),
        "scalar": np.float32(1),
        "index": jnp.arange(2),
        "mask": jnp.ones(2, bool),
        "key": jax.random.key(0),
        "old_key": jax.random.PRNGKey(0),
        "float8": jnp.ones(2, jnp.float8_e4m3fn),
        "complex": jnp.ones(2, jnp.complex64),
        "python": 1.0,
        "activation": jnp.tanh,
    }
    (got,) = seen(BF16, given)
    cast = {name for name in given if got[name] == "bfloat16"}
    assert cast == {"weight", "numpy", "scalar"}
    assert got["key"] == "key<fry>"
    assert got["python"] == "float"
    assert got["activation"] not in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("globs", "kept"),
    [
        ([], set()),
        (["*norm*"], {"blocks.0.norm1.scale", "blocks.1.norm1.scale"}),
        (["head"], {"head.w"}),
        (["blocks.0.**", "head"], {"blocks.0.norm1.scale", "blocks.0.dense.w", "head.w"}),
        (["blocks.*.dense"], {"blocks.0.dense.w", "blocks.1.dense.w"}),
        (["w"], {"blocks.0.dense.w", "blocks.1.dense.w", "head.w"}),
    ],
)
def test_named_leaves_stay_in_float32(globs: list[str], kept: set[str]) -> None:
    (got,) = seen(BF16, params(), keep_float32=globs)
    paths = {leaf_path(keys): dtype for keys, dtype in jax.tree_util.tree_leaves_with_path(got)}
    assert {path for path, dtype in paths.items() if dtype == "float32"} == kept
    assert set(paths.values()) <= {"float32", "bfloat16"}


def test_a_plan_keeps_its_islands() -> None:
    island = {"module": "blocks.*.norm1", "policy": {"compute_dtype": "float32"}}
    (got,) = seen(fw.plan.recipe("bf16-mixed", modules=[island]), params())
    assert got["blocks"][1] == {"norm1": {"scale": "float32"}, "dense": {"w": "bfloat16"}}


def test_paths_are_those_of_the_modules() -> None:
    flax = {"params": {"Dense_0": {"kernel": 1}}, "batch_stats": {"BatchNorm_0": {"mean": 1}}}
    haiku = {"mlp/~/linear_0": {"w": 1}}
    paths = [leaf_path(keys) for tree in (flax, haiku) for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]
    assert paths == ["BatchNorm_0.mean", "Dense_0.kernel", "mlp.~.linear_0.w"]
    assert covers("linear_0", "mlp.~.linear_0.w")
    assert not covers("~.linear_0", "mlp.~.linear_0.w")
    assert covers("(root)", "mlp.w")


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        (["nrom1"], "covers no argument's leaf; did you mean 'norm1'"),
        (["a..b"], "there is no name between two dots"),
        ("head", r"expected a list of globs: \['head'\]"),
    ],
)
def test_wrong_globs_are_refused(globs: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        fw.jax.cast(lambda tree: jnp.float32(0), BF16, keep_float32=globs)(params())


def test_float8_arithmetic_is_no_cast() -> None:
    with pytest.raises(PlanError, match="whose operands need scale factors"):
        fw.jax.cast(lambda x: x, "fp8-tensorwise")


def test_running_statistics_loss_scales_and_kept_arguments_pass() -> None:
    variables = {"params": {"w": jnp.ones(2)}, "batch_stats": {"bn": {"mean": jnp.ones(2)}}}
    got = seen(BF16, variables, jnp.ones(2), fw.jax.LossScale.dynamic(), keep_argnums=[1])
    assert got[0] == {"params": {"w": "bfloat16"}, "batch_stats": {"bn": {"mean": "float32"}}}
    assert got[1] == "float32"
    assert got[2].value == "float32"


def test_gradients_come_back_in_the_format_of_the_parameters() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return (x @ w).sum()

    w, x = jnp.ones((4, 4)), jnp.ones((2, 4))
    outside = jax.grad(loss)(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16))  # the stock way to lose them
    assert outside.dtype == jnp.bfloat16
    inside = fw.jax.cast(loss, BF16)
    assert jax.grad(inside)(w, x).dtype == jnp.float32
    assert inside(w, x).dtype == jnp.float32
    assert fw.jax.operator_dtypes(jax.grad(inside), w, x, compiled=False).formats() == {"bfloat16*bfloat16": 2}


def test_it_works_under_every_transformation() -> None:
    @fw_cast
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    w, x = jnp.full((3, 3), 0.1), jnp.ones((2, 3))
    expected = layer(w, x)
    assert expected.dtype == jnp.float32
    assert jax.jit(layer)(w, x).dtype == jnp.float32
    np.testing.assert_allclose(jax.jit(layer)(w, x), expected, rtol=2**-7)
    np.testing.assert_allclose(jax.vmap(layer, (None, 0))(w, x), expected, rtol=2**-7)
    carried, _ = jax.lax.scan(lambda h, _: (layer(w, h), None), x, None, length=3)
    assert carried.dtype == jnp.float32
    assert jax.jit(jax.grad(lambda w: jax.checkpoint(layer)(w, x).sum()))(w).dtype == jnp.float32


def fw_cast(fn: Any) -> Any:
    return fw.jax.cast(fn, BF16)


def test_a_stray_float32_part_takes_all_after_it_along_unless_it_is_an_island() -> None:
    def norm(h: jax.Array, scale: jax.Array) -> jax.Array:
        return h / jnp.sqrt(jnp.mean(h * h)) * scale

    def net(p: Any, x: jax.Array, norm: Any) -> Any:
        return (norm(x @ p["a"], p["norm"]) @ p["b"]).sum()

    p = {"a": jnp.ones((4, 4)), "norm": jnp.ones(4), "b": jnp.ones((4, 4))}

    def formats(part: Any) -> dict[str, int]:
        fn = fw.jax.cast(lambda p, x: net(p, x, part), BF16, keep_float32=["norm"])
        return fw.jax.operator_dtypes(fn, p, jnp.ones((2, 4)), compiled=False).formats()

    assert formats(norm) == {"bfloat16*bfloat16": 1, "float32*bfloat16": 1}
    assert formats(fw.jax.island(norm)) == {"bfloat16*bfloat16": 2}


@pytest.mark.parametrize(("recipe", "precision"), [("fp32", "HIGHEST"), ("tf32", "HIGH")])
def test_a_plan_says_how_float32_products_are_computed(recipe: str, precision: str) -> None:
    def products(fn: Any) -> Any:
        (product,) = (e for e in jax.make_jaxpr(fn)(jnp.ones((2, 2))).jaxpr.eqns if e.primitive.name == "dot_general")
        return product.params["precision"]

    assert products(lambda a: a @ a) is None  # stock: what the backend likes, TF32 or bfloat16 passes
    assert products(fw.jax.cast(lambda a: a @ a, recipe)) == (jax.lax.Precision[precision],) * 2


def test_parameters_are_stored_as_the_plan_says() -> None:
    island = {"module": "head", "policy": {"param_dtype": "float32", "compute_dtype": "float32"}}
    stored = fw.jax.cast_params(params(), fw.plan.recipe("bf16-master", modules=[island]))
    assert stored["head"]["w"].dtype == jnp.float32
    assert stored["blocks"][0]["dense"]["w"].dtype == jnp.bfloat16

# SPDX-License-Identifier: Apache-2.0
"""Products of an unmodified loss function under a plan: their dtypes, and that nothing else changes its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import floatwise as fw
from floatwise.errors import PlanError
from floatwise.jax.script.autocast import Autocast
from floatwise.jax.script.plan_support import check_plan
from floatwise.jax.script.rewriting import rewrite
from floatwise.plan import recipe

X = jax.random.normal(jax.random.key(0), (4, 8))
W = jax.random.normal(jax.random.key(1), (8, 8)) * 0.3
IMAGE = jax.random.normal(jax.random.key(2), (2, 6, 6, 3))
KERNEL = jax.random.normal(jax.random.key(3), (3, 3, 3, 5))
BF16 = "bfloat16*bfloat16"
F32 = "float32*float32"


def conv(w: Any, x: Any) -> Any:
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return (jax.nn.relu(y) ** 2).mean()


def attention(w: Any, x: Any) -> Any:
    q = jnp.einsum("ld,de->le", x, w)[None, :, None]
    return (jax.nn.dot_product_attention(q, q, q) ** 2).mean()


def scanned(w: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0] ** 2).mean()


LOSSES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "matmul": (lambda w, x: ((x @ w) ** 2).mean(), W, X),
    "data needs a gradient too": (lambda w, x: ((jnp.tanh(x @ w) @ w) ** 2).mean(), W, X),
    "convolution": (conv, KERNEL, IMAGE),
    "attention": (attention, W, X),
    "scan": (scanned, W, X),
    "remat": (lambda w, x: (jax.checkpoint(lambda h: jnp.tanh(h @ w) @ w)(x) ** 2).mean(), W, X),
    "jit inside": (lambda w, x: (jax.jit(lambda h: h @ w)(x) ** 2).mean(), W, X),
    "cond": (lambda w, x: jax.lax.cond(x.sum() > 0, lambda: (x @ w).sum(), lambda: (x @ w).mean()), W, X),
    "an algorithm that bfloat16 has not": (
        lambda w, x: (jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), precision="highest") ** 2).mean(),
        W,
        X,
    ),
}


def under(plan: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    return rewrite(loss, Autocast(plan))


@pytest.mark.parametrize("name", LOSSES)
def test_products_forward_and_backward_are_bfloat16_and_the_rest_keeps_its_dtype(name: str) -> None:
    loss, w, x = LOSSES[name]
    step = jax.value_and_grad(under(recipe("bf16-mixed"), loss))
    (products,) = fw.jax.operator_dtypes(jax.value_and_grad(loss), w, x, compiled=False).formats().values()
    assert fw.jax.operator_dtypes(step, w, x, compiled=False).formats() == {BF16: products}
    value, grad = jax.jit(step)(w, x)
    expected, expected_grad = jax.value_and_grad(loss)(w, x)
    assert (value.dtype, grad.dtype) == (jnp.float32, jnp.float32)
    assert value == pytest.approx(float(expected), rel=0.03)
    assert float(jnp.linalg.norm(grad - expected_grad) / jnp.linalg.norm(expected_grad)) < 0.03
    assert (np.asarray(grad) != np.asarray(expected_grad)).any()


def test_results_are_those_of_a_loss_with_the_casts_written_out() -> None:
    def by_hand(w: Any, x: Any) -> Any:
        h = jnp.tanh((x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32))
        return ((h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32) ** 2).mean()

    mine = jax.jit(jax.value_and_grad(under(recipe("bf16-mixed"), lambda w, x: ((jnp.tanh(x @ w) @ w) ** 2).mean())))
    np.testing.assert_array_equal(mine(W, X)[1], jax.jit(jax.value_and_grad(by_hand))(W, X)[1])


def test_the_compiled_step_multiplies_bfloat16() -> None:
    w, x = jnp.ones((256, 256)) * 0.01, jnp.ones((256, 256))
    step = jax.value_and_grad(under(recipe("bf16-mixed"), lambda w, x: ((jnp.tanh(x @ w) @ w) ** 2).mean()))
    assert BF16 in fw.jax.operator_dtypes(step, w, x).formats()


class Net(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.LayerNorm(name="norm")(linen.Dense(8, name="body")(x))
        return linen.Dense(3, name="head")(jax.nn.softmax(x))


VARIABLES = Net().init(jax.random.key(0), X)


def of_net(variables: Any, x: Any) -> Any:
    out: Any = Net().apply(variables, x)
    return (out**2).mean()


def of_tree(params: Any, x: Any) -> Any:
    return ((jnp.tanh(x @ params["layers"][0]["w"]) @ params["layers"][1]["w"]) ** 2).mean()


TREE = {"layers": [{"w": W}, {"w": W}]}


@pytest.mark.parametrize(
    ("loss", "params", "modules", "expected", "unmatched"),
    [
        (of_net, VARIABLES, {}, {BF16: 5}, []),
        (of_net, VARIABLES, {"head": "float32"}, {BF16: 2, F32: 3}, []),
        (of_net, VARIABLES, {"Net.head": "float32"}, {BF16: 2, F32: 3}, []),
        (of_net, VARIABLES, {"Net": "float32"}, {F32: 5}, []),
        (of_net, VARIABLES, {"(root)": "float32"}, {F32: 5}, []),
        (of_net, VARIABLES, {"**": "float32", "head": "bfloat16"}, {F32: 2, BF16: 3}, []),
        (of_net, VARIABLES, {"norm": "float32"}, {BF16: 5}, []),
        (of_net, VARIABLES, {"tail": "float32", "h*": "float32"}, {BF16: 2, F32: 3}, ["tail"]),
        (of_tree, TREE, {"layers.1": "float32"}, {BF16: 2, F32: 3}, []),
        (of_tree, TREE, {"layers.0.w": "float32"}, {BF16: 3, F32: 2}, []),
        (of_tree, TREE, {"layers": "float32"}, {F32: 5}, []),
        (of_tree, TREE, {"**": "float32", "layers.1": "bfloat16"}, {F32: 2, BF16: 3}, []),
    ],
)
def test_islands_stay_in_float32(
    loss: Any, params: Any, modules: dict[str, str], expected: dict[str, int], unmatched: list[str]
) -> None:
    entries = [{"module": glob, "policy": {"compute_dtype": dtype}} for glob, dtype in modules.items()]
    rule = Autocast(recipe("bf16-mixed", modules=entries))
    step = jax.value_and_grad(rewrite(loss, rule))
    assert Counter(fw.jax.operator_dtypes(step, params, X, compiled=False).formats()) == Counter(expected)
    assert rule.unmatched == unmatched


@pytest.mark.parametrize(("matmul", "precision"), [("ieee", "HIGHEST"), ("tf32", "None")])
def test_an_island_multiplies_all_bits_where_the_plan_says_ieee(matmul: str, precision: str) -> None:
    island = [{"module": "w", "policy": {"compute_dtype": "float32"}}]
    plan = recipe("bf16-mixed", modules=island, float32_matmul=matmul)
    text = str(jax.make_jaxpr(under(plan, lambda p, x: (x @ p["w"]).sum()))({"w": W}, X))
    assert ("Precision.HIGHEST" in text) == (precision == "HIGHEST")


def test_what_is_not_float32_stays_what_it_is() -> None:
    def loss(w: Any, x: Any) -> Any:
        whole = (jnp.arange(8) @ jnp.arange(8)).astype(jnp.float32)
        mixed = (x.astype(jnp.float16) @ w.astype(jnp.float16)).astype(jnp.float32).mean()
        return mixed + (jnp.fft.fft(x) @ w).real.mean() * whole

    formats = fw.jax.operator_dtypes(under(recipe("bf16-mixed"), loss), W, X, compiled=False).formats()
    assert BF16 not in formats
    assert formats["float16*float16"] == 1


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("bf16-master", {}, "floatwise.jax.split_master"),
        ("fp16-master", {}, "floatwise.jax.float32_master"),
        ("fp8-tensorwise", {}, "use 'bf16-mixed'"),
        ("bf16-mixed", {"reductions": {"buffer_dtype": "bfloat16"}}, "write buffer_dtype = 'float32'"),
        ("bf16-mixed", {"reductions": {"reduce_dtype": "bfloat16"}}, "write reduce_dtype = 'float32'"),
    ],
)
def test_plans_that_cannot_be_applied_from_outside_say_what_to_do(name: str, changes: Any, told: str) -> None:
    with pytest.raises(PlanError, match=r"applied to a JAX script as it is: bf16-mixed, fp16-mixed, fp32, tf32") as e:
        check_plan(recipe(name, **changes))
    assert told in str(e.value)

# SPDX-License-Identifier: Apache-2.0
"""A loss evaluated equation by equation is the loss itself, bit for bit, and a rule sees what it computes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from floatwise.jax.script.rewriting import Equation, Program, rewrite

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype(np.float32)
P = {
    "first": {"w": jnp.asarray(RNG.normal(size=(6, 6)), jnp.float32), "b": jnp.ones(6)},
    "second": {"w": jnp.asarray(RNG.normal(size=(6, 6)), jnp.float32), "b": jnp.zeros(6)},
}


def as_it_is(equation: Equation, operands: Sequence[Any], evaluate: Callable[..., Any]) -> Any:
    return evaluate(*operands)


def layer(p: Any, x: Any) -> Any:
    return x @ p["w"] + p["b"]


def plain(p: Any, x: Any) -> Any:
    return jnp.mean(layer(p["second"], jax.nn.gelu(layer(p["first"], x))) ** 2)


def derivatives_of_their_own(p: Any, x: Any) -> Any:
    hidden = jax.nn.relu(layer(p["first"], x))
    return jnp.mean(jax.nn.logsumexp(jax.nn.softmax(layer(p["second"], hidden)), axis=-1)) + jax.nn.silu(hidden).sum()


def repeated(p: Any, x: Any) -> Any:
    def body(carry: Any, w: Any) -> Any:
        return jnp.tanh(carry @ w), carry.sum()

    last, sums = jax.lax.scan(jax.checkpoint(body), x, jnp.stack([p["first"]["w"], p["second"]["w"]]), reverse=True)
    return jnp.sum(last**2) + jnp.sum(sums)


def branching(p: Any, x: Any) -> Any:
    two = jax.lax.cond(x[0, 0] > 0, lambda v: layer(p["first"], v), lambda v: v, x)
    three = jax.lax.switch(jnp.int32(2), [jnp.sin, jnp.cos, partial(layer, p["second"])], two)
    return jax.lax.fori_loop(0, 2, lambda i, v: v * 0.5, jnp.mean(three**2))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))


def own_backward(p: Any, x: Any) -> Any:
    return jnp.sum(clipped(jax.jit(layer)(p["first"], x)) ** 2)


def random_numbers(p: Any, x: Any) -> Any:
    key = jax.random.key(3)
    return jnp.mean(jnp.where(jax.random.bernoulli(key, 0.5, x.shape), layer(p["first"], x), 0) ** 2)


def gradient_inside(p: Any, x: Any) -> Any:
    return jnp.sum(jax.grad(lambda v: plain(p, v))(x) ** 2)


def eager(fun: Any) -> Any:
    return jax.value_and_grad(fun)(P, X)


def jitted(fun: Any) -> Any:
    return jax.jit(jax.value_and_grad(fun))(P, X)


def per_example(fun: Any) -> Any:
    return jax.jit(jax.vmap(jax.value_and_grad(fun), (None, 0)))(P, X[:, None])


def steps_in_scan(fun: Any) -> Any:
    def step(p: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(fun)(p, x)
        return jax.tree.map(lambda a, g: a - 0.01 * g, p, grads), value

    return jax.jit(lambda p: jax.lax.scan(step, p, jnp.stack([X, X])))(P)


def on_devices(fun: Any) -> Any:
    return jax.pmap(jax.value_and_grad(fun), in_axes=(None, 0))(P, X[None])


def in_shard_map(fun: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    spec: Any = jax.sharding.PartitionSpec

    def step(p: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(fun)(p, x)
        mean: Any = jax.lax.pmean
        return mean(value, "data"), mean(grads, "data")

    shard_map: Any = jax.shard_map
    mapped: Any = shard_map(step, mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec(), check_vma=False)
    jit: Any = jax.jit
    return jit(mapped)(P, X)


def hessian_vector(fun: Any) -> Any:
    return jax.jit(lambda p: jax.jvp(jax.grad(fun), (p, X), (p, X)))(P)


def rematerialised(fun: Any) -> Any:
    return jax.jit(jax.grad(jax.checkpoint(fun)))(P, X)


LOSSES = [plain, derivatives_of_their_own, repeated, branching, own_backward, random_numbers, gradient_inside]
WAYS = [per_example, steps_in_scan, on_devices, in_shard_map, rematerialised]


def same(first: Any, second: Any) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return str(jax.tree.structure(first)) == str(jax.tree.structure(second)) and all(
        np.array_equal(a, b) for a, b in pairs
    )


@pytest.mark.filterwarnings("ignore:.*pmap.*")
@pytest.mark.parametrize(
    ("fun", "way"),
    [(fun, way) for fun in LOSSES for way in (eager, jitted)] + [(repeated, way) for way in WAYS],
    ids=lambda value: value.__name__,
)
def test_without_a_change_every_bit_is_the_same(fun: Any, way: Any) -> None:
    errors: list[Exception] = []
    assert same(way(fun), way(rewrite(fun, as_it_is, gave_up=errors.append)))
    assert errors == []


def test_forward_over_reverse_is_the_same() -> None:
    assert same(hessian_vector(plain), hessian_vector(rewrite(plain, as_it_is)))


def seen(fun: Any, *args: Any, argnums: Any = 0) -> list[Equation]:
    found: list[Equation] = []

    def keep(equation: Equation, operands: Sequence[Any], evaluate: Callable[..., Any]) -> Any:
        found.append(equation)
        return evaluate(*operands)

    jax.eval_shape(jax.grad(rewrite(fun, keep, argnums), argnums), *args)
    return found


def products(equations: list[Equation]) -> list[Equation]:
    return [equation for equation in equations if equation.primitive == "dot_general"]


def test_an_equation_tells_its_parameters_module_and_line() -> None:
    first, second = products(seen(plain, P, X))
    assert (first.parameters, first.module) == ((None, "first.w"), "first")
    assert (second.parameters, second.module) == ((None, "second.w"), "second")
    assert first.where.startswith("tests/jax/script/test_rewriting.py:")
    assert [tuple(aval.shape) for aval in (*first.inputs, *first.outputs)] == [(8, 6), (6, 6), (8, 6)]
    assert first.place != second.place


def test_parameters_are_known_through_other_forms_and_inside_calls() -> None:
    def fun(p: Any) -> Any:
        inner = jax.jit(lambda w: jnp.sum(jnp.einsum("ij,kj->ik", X, w.astype(jnp.float32).T.reshape(6, 6))))
        return inner(p["first"]["w"]) + jnp.sum(jax.checkpoint(lambda w: X @ w)(p["second"]["w"]))

    parameters = [next(path for path in e.parameters if path) for e in products(seen(fun, P))]
    assert parameters == ["first.w", "second.w"]


def test_what_scan_repeats_says_how_often() -> None:
    (product,) = products(seen(repeated, P, X))
    assert product.turns == 2


@pytest.mark.parametrize("name", ["relu", "softplus"])
def test_custom_derivatives_are_one_equation(name: str) -> None:
    equations = seen(lambda p, x: jnp.sum(getattr(jax.nn, name)(x * p["first"]["w"][0])), P, X)
    assert "custom_jvp_call" in [equation.primitive for equation in equations]


def test_flax_modules_are_named_as_their_parameters() -> None:
    nn: Any = pytest.importorskip("flax.linen")

    class Block(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return nn.relu(nn.Dense(4, name="inner")(x))

    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return jnp.sum(nn.LayerNorm()(Block(name="block")(nn.Dense(6)(x))) @ jnp.ones((4, 2)))

    net = Net()
    variables = net.init(jax.random.key(0), X)
    equations = seen(lambda v: net.apply(v, X), variables)
    assert [equation.module for equation in products(equations)] == ["Dense_0", "block.inner", ""]
    assert {e.module for e in equations if e.primitive == "custom_jvp_call"} == {"block"}


def test_a_rule_may_return_other_floating_dtypes() -> None:
    def halves(equation: Equation, operands: Sequence[Any], evaluate: Callable[..., Any]) -> Any:
        if equation.primitive != "dot_general":
            return evaluate(*operands)
        return [jnp.matmul(*(operand.astype(jnp.bfloat16) for operand in operands))]

    for fun in (repeated, branching):
        errors: list[Exception] = []
        value, grads = jax.value_and_grad(rewrite(fun, halves, gave_up=errors.append))(P, X)
        assert errors == []
        assert {leaf.dtype for leaf in jax.tree.leaves((value, grads))} == {jnp.dtype("float32")}
        assert float(value) != float(fun(P, X))
        assert float(value) == pytest.approx(float(fun(P, X)), rel=0.05)


def test_arguments_that_are_not_differentiated_reach_the_function_untouched() -> None:
    def fun(p: Any, mode: str, nothing: None, key: Any, *, scale: float) -> Any:
        assert (mode, nothing) == ("train", None)
        return scale * jnp.sum(p["first"]["w"] * jax.random.normal(key, (6, 6))), {"mode": mode, "step": 3}

    args = (P, "train", None, jax.random.key(0))
    watched = rewrite(fun, as_it_is)
    (value, aux), grads = jax.value_and_grad(watched, has_aux=True)(*args, scale=2.0)
    assert aux == {"mode": "train", "step": 3}
    assert same((value, grads), (fun(*args, scale=2.0)[0], jax.grad(fun, has_aux=True)(*args, scale=2.0)[0]))


def test_a_function_that_branches_in_python_is_called_as_it_is() -> None:
    def fun(p: Any) -> Any:
        noise = np.random.rand() + random.random()
        value = jnp.sum(p["first"]["w"]) * noise
        return value if value > 0 else -value

    def run(of: Any) -> Any:
        np.random.seed(1)
        random.seed(1)
        return jax.value_and_grad(of)(P), np.random.rand(), random.random()

    errors: list[Exception] = []
    assert same(run(fun), run(rewrite(fun, as_it_is, gave_up=errors.append)))
    assert len(errors) == 1
    assert isinstance(errors[0], jax.errors.TracerBoolConversionError)


def test_an_nnx_model_that_branches_is_called_as_it_is() -> None:
    nnx = pytest.importorskip("flax.nnx")
    from tests.jax.script.test_gradient_tap import tapped

    from floatwise.jax.script.gradient_tap import Call, GradientListener

    class Rewrites(GradientListener):
        def loss_function(self, call: Call) -> Callable[..., Any]:
            return rewrite(call.fun, as_it_is, call.argnums)

    model = nnx.Linear(6, 2, rngs=nnx.Rngs(0))

    def fun(m: Any) -> Any:
        value = jnp.sum(m(X))
        return value if value > 0 else -value

    alone = jax.tree.leaves(nnx.grad(fun)(model))
    with tapped(Rewrites()):
        assert same(alone, jax.tree.leaves(nnx.grad(fun)(model)))


def test_an_error_of_the_functions_own_stays_its_own() -> None:
    def fun(p: Any) -> Any:
        raise KeyError("mine")

    errors: list[Exception] = []
    with pytest.raises(KeyError, match="mine"):
        jax.grad(rewrite(fun, as_it_is, gave_up=errors.append))(P)
    assert errors == []


def test_the_program_is_known_before_it_is_evaluated_and_chooses_the_rule() -> None:
    programs: list[Program] = []

    def prepare(program: Program) -> Any:
        programs.append(program)

        def doubles(equation: Equation, operands: Sequence[Any], evaluate: Callable[..., Any]) -> Any:
            return [2 * r for r in evaluate(*operands)] if equation.primitive == "dot_general" else evaluate(*operands)

        return doubles

    value = jax.jit(rewrite(own_backward, as_it_is, prepare=prepare))(P, X)
    assert programs[0].parameters == ["first.b", "first.w", "second.b", "second.w"]
    assert float(value) == pytest.approx(float(jnp.sum((2 * (X @ P["first"]["w"]) + P["first"]["b"]) ** 2)), rel=1e-5)


def test_an_eager_script_compiles_what_is_jitted_inside_once() -> None:
    inner = jax.jit(layer)

    def fun(p: Any) -> Any:
        return jnp.sum(inner(p["first"], X))

    kept: dict[Any, Any] = {}
    for _ in range(3):
        jax.grad(rewrite(fun, as_it_is, kept=kept))(P)
    assert len(kept) == 1

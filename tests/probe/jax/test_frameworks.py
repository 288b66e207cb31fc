# SPDX-License-Identifier: Apache-2.0
"""Sites of Flax, nnx, Equinox and Haiku have the paths of their parameters, and the operators their PyTorch names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import floatwise as fw
from floatwise.probe.recording import Recording, Site

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4, 8)).astype(np.float32)
IMAGES = RNG.normal(size=(6, 8, 8, 1)).astype(np.float32)
LABELS = RNG.integers(0, 3, 6)


def cross_entropy(logits: Any) -> Any:
    optax: Any = pytest.importorskip("optax")
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()


@functools.cache
def of_flax() -> Recording:
    nn: Any = pytest.importorskip("flax.linen")

    class Block(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            hidden = nn.MultiHeadDotProductAttention(2, name="attention")(
                nn.LayerNorm()(x), mask=jnp.ones((6, 1, 4, 4), bool)
            )
            return x + nn.Dense(8)(nn.gelu(hidden))

    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3, name="head")(Block(name="block")(x).mean(1))

    net = Net()
    params = jax.jit(net.init)(jax.random.key(0), X)["params"]

    def fun(p: Any) -> Any:
        return cross_entropy(net.apply({"params": p}, X))

    found: Recording = fw.jax.probe(jax.jit(lambda p: jax.grad(fun)(p)), params)
    return found


def of_nnx() -> Recording:
    nnx: Any = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.conv = nnx.Conv(1, 4, (3, 3), padding="VALID", rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)])

        def __call__(self, x: Any) -> Any:
            x = self.drop(nnx.relu(self.norm(self.conv(x)))).mean((1, 2))
            for layer in self.layers:
                x = layer(x)
            return x

    model = Net(nnx.Rngs(0))
    step = nnx.jit(lambda m: nnx.value_and_grad(lambda m: cross_entropy(m(IMAGES)))(m)[0])
    found: Recording = fw.jax.probe(step, model)
    return found


def of_equinox() -> Recording:
    eqx: Any = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 3, 16, 1, key=jax.random.key(0))
    step = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: cross_entropy(jax.vmap(m)(X[:, 0]))))
    found: Recording = fw.jax.probe(step, model)
    return found


def of_haiku() -> Recording:
    hk: Any = pytest.importorskip("haiku")
    net = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(3, name="head")(hk.nets.MLP([16])(x))))
    params = net.init(jax.random.PRNGKey(0), X[:, 0])
    found: Recording = fw.jax.probe(jax.jit(jax.grad(lambda p: cross_entropy(net.apply(p, X[:, 0])))), params)
    return found


ATTENTION = "block.attention"


@pytest.mark.parametrize(
    ("record", "products"),
    [
        (
            of_flax,
            {
                f"{ATTENTION}.query": ("linear", (24, 8, 8)),
                f"{ATTENTION}.key": ("linear", (24, 8, 8)),
                f"{ATTENTION}.value": ("linear", (24, 8, 8)),
                f"{ATTENTION}:einsum": ("einsum", (48, 4, 4)),
                f"{ATTENTION}:einsum#2": ("einsum", (48, 4, 4)),
                f"{ATTENTION}.out": ("linear", (24, 8, 8)),
                "block.Dense_0": ("linear", (24, 8, 8)),
                "head": ("linear", (6, 3, 8)),
            },
        ),
        (
            of_nnx,
            {
                "conv": ("conv2d", (6 * 6 * 6, 4, 9)),
                "layers.0": ("linear", (6, 4, 4)),
                "layers.1": ("linear", (6, 3, 4)),
            },
        ),
        (of_equinox, {"layers.0": ("linear", (6, 16, 8)), "layers.1": ("linear", (6, 3, 16))}),
        (of_haiku, {"mlp.~.linear_0": ("linear", (6, 16, 8)), "head": ("linear", (6, 3, 16))}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_products_are_named_and_measured(
    record: Callable[[], Recording], products: dict[str, tuple[str, tuple[int, int, int]]]
) -> None:
    recording = record()
    found: dict[str, Site] = {site.path: site for site in recording.sites}
    assert {p: (s.kind, (s.m, s.n, s.k)) for p, s in found.items() if s.matrix} == products
    for path, (kind, shape) in products.items():
        assert found[path].flops == 2 * int(np.prod(shape))
        assert {role for p, role in recording.summaries if p == path} == {"input", "output", "grad_output"}
        if kind != "einsum":
            assert len(found[path].weights) == 2  # with its bias
            assert {weight.rpartition(".")[0] for weight in found[path].weights} == {path}
    assert found[":cross_entropy"].matrix is False
    parameters = {path for path, role in recording.summaries if role == "weight_grad"}
    assert {weight for site in found.values() for weight in site.weights} <= parameters


def test_flax_attention_has_its_softmax_and_no_constant_for_its_mask() -> None:
    recording = of_flax()
    sites = {site.path: site for site in recording.sites}
    assert sites[f"{ATTENTION}:softmax"].kind == "softmax"
    assert f"{ATTENTION}:masked_fill" not in sites  # finfo.min follows the dtype
    assert set(sites[f"{ATTENTION}:einsum"].sources) == {f"{ATTENTION}.query", f"{ATTENTION}.key"}


@pytest.mark.parametrize("number", [np.finfo(np.float32).min, -np.inf])
def test_masked_values_are_no_magnitudes(number: float) -> None:
    w = {"a": {"w": jnp.ones((8, 8))}, "b": {"w": jnp.ones((8, 8))}}

    def fun(p: Any) -> Any:
        scores = jnp.where(jnp.arange(8) < 4, X[:, 0] @ p["a"]["w"], number)
        return jnp.sum(jax.nn.softmax(scores) @ p["b"]["w"])

    found = fw.jax.probe(jax.jit(lambda p: jax.grad(fun)(p)), w, full=True)
    masked = found.summaries[":softmax", "input"]
    assert masked.amax == found.summaries["a", "output"].amax < 100
    assert (masked.seen, masked.nonfinite) == (48, 24)


@pytest.mark.parametrize(("number", "constant"), [(1e6, 1e6), (2.0, 0.0), (1e-9, 1e-9)])
def test_a_number_that_float16_cannot_hold_is_noted(number: float, constant: float) -> None:
    w = {"a": {"w": jnp.ones((8, 8))}, "b": {"w": jnp.ones((8, 8))}}

    def fun(p: Any) -> Any:
        return jnp.sum((X @ p["a"]["w"] + number) @ p["b"]["w"])

    sites = {site.path: site for site in fw.jax.probe(jax.jit(lambda p: jax.grad(fun)(p)), w).sites}
    assert (sites[":add"].sources, sites[":add"].constant) == (("a",), pytest.approx(constant))
    assert sites["b"].sources == ("a",)


def test_what_meets_float32_comes_from_no_16_bit_product() -> None:
    w = {"a": {"w": jnp.ones((8, 8))}, "b": {"w": jnp.ones((8, 8))}, "scale": jnp.ones(8)}

    def fun(p: Any) -> Any:
        return jnp.sum(jnp.exp(X @ p["a"]["w"] * p["scale"]) @ p["b"]["w"])

    found = {site.path: site for site in fw.jax.probe(jax.jit(lambda p: jax.grad(fun)(p)), w).sites}
    assert list(found) == ["a", "b"]
    assert found["b"].sources == ()

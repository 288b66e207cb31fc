# SPDX-License-Identifier: Apache-2.0
"""The exported JAX source with Flax (linen and nnx): dtypes from arrays and the jaxpr, and DynamicScale's steps."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.running import run_program

from floatwise.exporters import export_plan, get_system
from floatwise.plan import LossScale, ModulePolicy, Policy, recipe

pytest.importorskip("flax")
pytestmark = [pytest.mark.slow]

MODULES = (ModulePolicy(module="head", policy=Policy(compute_dtype="float32")),)
SCALE = LossScale(initial_scale=4.0, floor=1.0, growth_interval=2)

CODE = """
import functools, json
import jax, jax.numpy as jnp, numpy as np, optax
from flax import linen, nnx
from flax.training.dynamic_scale import DynamicScale

def names(tree):
    return sorted({str(x.dtype) for x in jax.tree.leaves(tree) if hasattr(x, "dtype") and x.dtype.kind in "fV"})

def products(jaxpr, found):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            found.append([str(v.aval.dtype) for v in eqn.invars])
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                products(inner, found)
    return found

X, Y = jnp.asarray(np.random.default_rng(0).normal(size=(16, 8)), jnp.float32), jnp.ones((16, 2), jnp.float32)

def linen_net(dtypes):
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Dense(16, name="body", **dtypes("body"))(x))
            return linen.Dense(2, name="head", **dtypes("head"))(x)
    net = Net()
    return net.init(jax.random.key(0), X), lambda params, x: net.apply(params, x)

def nnx_net(dtypes):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.body = nnx.Linear(8, 16, rngs=rngs, **dtypes("body"))
            self.head = nnx.Linear(16, 2, rngs=rngs, **dtypes("head"))
        def __call__(self, x):
            return self.head(nnx.relu(self.body(x)))
    graph, params = nnx.split(Net(nnx.Rngs(0)))
    return params, lambda params, x: nnx.merge(graph, params)(x)

def run(source, make):
    space = {}
    exec(source, space)
    params, apply = make(space["dtypes"])
    optimizer = optax.adam(1e-2)
    state, scale, losses, scales = optimizer.init(params), space.get("DYNAMIC_SCALE"), [], []
    def loss_fn(params, x):
        output = space["to_output"](apply(params, x))
        return jnp.mean((output - Y) ** 2), output
    for step in range(5):
        x = X * 1e6 if scale is not None and step == 2 else X
        if scale is None:
            (loss, output), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, x)
            finite = True
        else:
            scale, finite, (loss, output), grads = scale.value_and_grad(loss_fn, has_aux=True)(params, x)
            scales.append(float(scale.scale))
        updates, new_state = optimizer.update(grads, state)
        new = optax.apply_updates(params, updates)
        keep = functools.partial(jnp.where, finite)
        params, state = jax.tree.map(keep, new, params), jax.tree.map(keep, new_state, state)
        losses.append(float(loss))
    if scale is not None:
        floor = scale
        for _ in range(4):
            floor, *_ = floor.value_and_grad(loss_fn, has_aux=True)(params, X * 1e6)
        scales.append(float(floor.scale))
    jaxpr = jax.make_jaxpr(lambda p: apply(p, X))(params)
    return {
        "params": names(params), "grads": names(grads), "states": names(state), "output": names([output]),
        "products": products(jaxpr.jaxpr, []), "losses": losses, "scales": scales,
        "matmul": jax.config.jax_default_matmul_precision,
    }

def without_floor():
    scale = DynamicScale(scale=4.0)
    step = jax.jit(lambda s: s.value_and_grad(lambda p: p * jnp.inf)(jnp.float32(1.0))[0])
    for _ in range(200):
        scale = step(scale)
    return float(scale.scale)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trains both kinds of Flax modules from three exported plans in one process."""
    plans = {
        "bf16": recipe("bf16-mixed", modules=MODULES),
        "fp16": recipe("fp16-mixed", modules=MODULES, loss_scale=SCALE),
        "tf32": recipe("tf32"),
    }
    sources = {name: export_plan(plan, get_system("jax")).text for name, plan in plans.items()}
    code = f"""{CODE}
makers = {{"linen": linen_net, "nnx": nnx_net}}
print(json.dumps({{
    "floorless": without_floor(),
    **{{f"{{n}} {{k}}": run(s, make) for n, s in {sources!r}.items() for k, make in makers.items()}},
}}))
"""
    return run_program(code, tmp_path_factory.mktemp("jax"), JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("kind", ["linen", "nnx"])
@pytest.mark.parametrize(("name", "compute"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_products_have_the_plans_formats_and_weights_are_float32(
    trained: Any, name: str, compute: str, kind: str
) -> None:
    found = trained[f"{name} {kind}"]
    assert found["products"] == [[compute, compute], ["float32", "float32"]]
    assert (found["params"], found["grads"], found["states"]) == (["float32"], ["float32"], ["float32"])
    assert found["output"] == ["float32"]
    assert found["losses"][-1] < found["losses"][0]


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_the_scale_halves_at_an_overflow_grows_and_stops_at_its_floor(trained: Any, kind: str) -> None:
    # Flax grows one step after growth_interval good ones: fin_steps is compared before it is raised.
    assert trained[f"fp16 {kind}"]["scales"] == [4.0, 4.0, 2.0, 2.0, 2.0, 1.0]


def test_without_minimum_scale_the_scale_falls_to_nearly_nothing(trained: Any) -> None:
    assert trained["floorless"] == 2.0**-126


def test_tf32_is_asked_for(trained: Any) -> None:
    assert trained["tf32 linen"]["matmul"] == "tensorfloat32"
    assert trained["tf32 linen"]["products"] == [["float32", "float32"]] * 2

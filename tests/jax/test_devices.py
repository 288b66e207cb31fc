# SPDX-License-Identifier: Apache-2.0
"""On two devices, by pmap and by shard_map: where one overflows, both skip; a process of its own has the devices."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.running import run_program

CODE = """
import json
import jax, jax.numpy as jnp, numpy as np, optax
import floatwise as fw
from jax.sharding import Mesh, PartitionSpec as P

assert jax.device_count() == 2
policy = "params=float32,compute=float16,output=float32"
loss_fn = fw.jax.cast(lambda w, x: (x @ w).astype(jnp.float32).sum(), policy)
optimizer = fw.jax.skip_if_not_finite(optax.sgd(0.25), axis_name="data")
w, scale = jnp.ones((2, 1)), fw.jax.LossScale.dynamic(initial_scale=256.0, growth_interval=2)
# The second device's gradient, 1024 times the scale, overflows float16; the first one's never does.
bad, good = np.float32([[[1, 1]], [[1024, 1]]]), np.float32([[[1, 1]], [[3, 1]]])
told = {}

def step(w, state, scale, x):
    _, grads, finite, scale = fw.jax.value_and_grad(loss_fn, scale, axis_name="data")(w, x)
    updates, state = optimizer.update(grads, state, w)
    return optax.apply_updates(w, updates), state, scale, finite

def alone(w, state, scale, x):
    _, grads, finite, scale = fw.jax.value_and_grad(loss_fn, scale)(w, x)
    return scale.value, finite

replicate = lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), tree)
carried = replicate((w, optimizer.init(w), scale))
apart, finite = jax.pmap(alone, "data")(*carried, bad)
told["without agreement"] = [apart.tolist(), finite.tolist()]
*carried, finite = jax.pmap(step, "data")(*carried, bad)
told["pmap skips"] = [finite.tolist(), carried[0].ravel().tolist(), carried[2].value.tolist()]
for _ in range(2):
    *carried, finite = jax.pmap(step, "data")(*carried, good)
told["pmap goes on"] = [finite.tolist(), carried[2].value.tolist(), carried[2].report().skipped_steps,
                        fw.jax.skip_report(carried[1]).skipped_steps, carried[0].ravel().tolist()]

mesh = Mesh(np.array(jax.devices()), ("data",))
def sharded(check):
    # Weights, one half to a device; the loss scale and the counts are replicated.
    def local(w, state, scale, x):
        w, state, scale, finite = step(w[0], state, scale, x[0])
        return w[None], state, scale, finite[None]
    def shape(tree, spec): return jax.tree.map(lambda _: spec, tree)
    state = optimizer.init(w)
    specs = (P("data"), shape(state, P()), shape(scale, P()), P("data"))
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=check))
    both = jnp.stack([w, 2 * w])
    after, state, moved, finite = run(both, state, scale, bad)
    return [finite.tolist(), after.ravel().tolist(), float(moved.value), fw.jax.skip_report(state).skipped_steps]
told["shard_map"] = sharded(False)
told["shard_map checked"] = sharded(True)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_program(CODE, tmp_path_factory.mktemp("devices"), XLA_FLAGS="--xla_force_host_platform_device_count=2")


def test_devices_that_do_not_agree_part(told: Any) -> None:
    assert told["without agreement"] == [[256.0, 128.0], [True, False]]


def test_pmap_skips_together_and_goes_on(told: Any) -> None:
    assert told["pmap skips"] == [[False, False], [1.0] * 4, [128.0, 128.0]]
    finite, scales, skipped, skipped_by_optimizer, weights = told["pmap goes on"]
    assert (finite, skipped, skipped_by_optimizer) == ([True, True], 1, 1)
    assert scales[0] == scales[1]
    assert weights == [0.5, 0.5, -0.5, 0.5]


@pytest.mark.parametrize("kind", ["shard_map", "shard_map checked"])
def test_shard_map_skips_together(told: Any, kind: str) -> None:
    assert told[kind] == [[False, False], [1.0, 1.0, 2.0, 2.0], 128.0, 1]

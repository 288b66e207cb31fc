# SPDX-License-Identifier: Apache-2.0
"""A probed step: sites, values against NumPy, and what the planner makes of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import floatwise as fw
from floatwise.errors import BadInputError
from floatwise.hardware import get_device
from floatwise.planner.decide import decide
from floatwise.probe.recording import Recording, Site, load_recording, save_recording
from floatwise.stats import exponent_counts

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 16)).astype(np.float32)
Y = RNG.normal(size=(32,)).astype(np.float32)
PARAMS = {
    "first": {"w": RNG.normal(size=(16, 24)).astype(np.float32), "b": RNG.normal(size=24).astype(np.float32)},
    "second": {"w": RNG.normal(size=(24,)).astype(np.float32)},
}


def loss(p: Any, x: Any, y: Any) -> Any:
    hidden = jnp.maximum(x @ p["first"]["w"] + p["first"]["b"], 0)
    return jnp.mean((hidden @ p["second"]["w"] - y) ** 2)


@jax.jit
def step(p: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(p, *batch)
    return jax.tree.map(lambda a, g: a - 0.01 * g, p, grads), value


def sites(recording: Recording) -> dict[str, Site]:
    return {site.path: site for site in recording.sites}


@pytest.fixture(scope="module")
def recording() -> Recording:
    step(PARAMS, (X, Y))  # traced before, without a probe
    found: Recording = fw.jax.probe(step, PARAMS, (X, Y), steps=3, full=True)
    return found


def by_hand() -> dict[tuple[str, str], Any]:
    """The values of the first step, in NumPy."""
    w1, b1, w2 = PARAMS["first"]["w"], PARAMS["first"]["b"], PARAMS["second"]["w"]
    before = X @ w1 + b1
    hidden = np.maximum(before, 0)
    out = hidden @ w2
    grad_out = 2 * (out - Y) / len(Y)
    grad_before = np.outer(grad_out, w2) * (before > 0)
    return {
        ("first", "input"): X,
        ("first", "output"): before,
        ("first", "grad_output"): grad_before,
        ("second", "input"): hidden,
        ("second", "output"): out,
        ("second", "grad_output"): grad_out,
        ("first.w", "weight"): w1,
        ("first.w", "weight_grad"): X.T @ grad_before,
        ("first.b", "weight_grad"): grad_before.sum(0),
        ("second.w", "weight_grad"): hidden.T @ grad_out,
    }


def test_values_are_those_of_numpy() -> None:
    one = fw.jax.probe(step, PARAMS, (X, Y), full=True)
    for key, values in by_hand().items():
        summary = one.summaries[key]
        assert summary.amax == pytest.approx(np.abs(values).max(), rel=2e-5), key
        assert (summary.elements, summary.observations) == (values.size, 1), key
        # Sums in another order move few values over a power of two.
        assert np.abs(summary.counts - exponent_counts(values)).sum() <= 4, key
    for key in (("first", "input"), ("first.w", "weight")):
        assert np.array_equal(one.summaries[key].counts, exponent_counts(by_hand()[key]))
        assert one.summaries[key].amax == np.abs(by_hand()[key]).max()


def test_losses_are_those_of_the_step_alone_bit_for_bit(recording: Recording) -> None:
    params, alone = PARAMS, []
    for _ in range(3):
        params, value = step(params, (X, Y))
        alone.append(float(value))
    assert list(recording.losses) == alone
    assert recording.steps == 3


def test_sites_tell_kind_shape_weights_and_calls(recording: Recording) -> None:
    found = sites(recording)
    first, second = found["first"], found["second"]
    assert (first.kind, first.parent, first.matrix, first.calls) == ("linear", "", True, 3)
    assert (first.m, first.n, first.k, first.flops) == (32, 24, 16, 2 * 32 * 24 * 16)
    assert first.weights == ("first.b", "first.w")
    assert (second.m, second.n, second.k) == (32, 1, 24)
    assert second.sources == ("first",)
    assert recording.parameters == 16 * 24 + 24 + 24
    assert (recording.framework, recording.parameter_dtype, recording.device) == ("jax", "float32", "cpu")
    assert recording.versions["jax"] == jax.__version__


def test_updates_and_stalls_are_of_the_steps_but_the_last(recording: Recording) -> None:
    assert recording.summaries["first.w", "update"].observations == 2
    assert {stall.parameter for stall in recording.stalls} == {"first.w", "first.b", "second.w"}


def test_a_recording_is_a_file_like_any_other(recording: Recording, tmp_path: Path) -> None:
    save_recording(recording, tmp_path / "step.recording")
    assert load_recording(tmp_path / "step.recording") == recording


def test_nothing_is_left_behind(recording: Recording) -> None:
    before = jax.grad, jax.value_and_grad
    again = fw.jax.probe(step, PARAMS, (X, Y))
    assert (jax.grad, jax.value_and_grad) == before
    assert "callback" not in str(step.lower(PARAMS, (X, Y)).as_text())
    assert sites(again)["first"].calls == 1


def test_gradient_functions_made_before_are_seen() -> None:
    gradient = jax.grad(loss)

    @jax.jit
    def trained(p: Any, batch: Any) -> Any:
        return jax.tree.map(lambda a, g: a - 0.01 * g, p, gradient(p, *batch))

    found = fw.jax.probe(trained, PARAMS, (X, Y), steps=2)
    assert sites(found)["first"].calls == 2
    assert found.losses[1] < found.losses[0]  # a result that is the state itself is fed back


def test_donated_arguments_and_eager_steps() -> None:
    def run(p: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, *batch)
        return jax.tree.map(lambda a, g: a - 0.01 * g, p, grads), value

    eager = fw.jax.probe(run, PARAMS, (X, Y), steps=2)
    donated = fw.jax.probe(
        jax.jit(run, donate_argnums=0), jax.tree.map(lambda a: jnp.array(a, copy=True), PARAMS), (X, Y), steps=2
    )
    assert sites(eager)["first"] == sites(donated)["first"]
    assert eager.losses == pytest.approx(donated.losses, rel=1e-6)


def test_examples_mapped_over_are_one_batch() -> None:
    @jax.jit
    def mapped(p: Any) -> Any:
        def one(p: Any, x: Any, y: Any) -> Any:
            return (jnp.maximum(x @ p["first"]["w"] + p["first"]["b"], 0) @ p["second"]["w"] - y) ** 2

        return jax.vmap(jax.grad(one), (None, 0, 0))(p, X, Y)

    found = fw.jax.probe(mapped, PARAMS)
    first = sites(found)["first"]
    assert (first.m, first.flops, first.calls, found.steps) == (32, 2 * 32 * 24 * 16, 1, 1)
    assert found.summaries["first", "input"].elements == X.size
    assert found.losses[0] == pytest.approx(float(loss(PARAMS, X, Y)), rel=1e-5)
    assert found.summaries["first.w", "weight_grad"].elements == 32 * 16 * 24  # each example's own


def test_what_scan_repeats_counts_as_often_and_remat_only_once() -> None:
    stacked = jnp.asarray(RNG.normal(size=(3, 16, 16)) / 4, jnp.float32)

    @partial(jax.jit, static_argnums=1)
    def layers(w: Any, again: bool) -> Any:
        def fun(w: Any) -> Any:
            def body(x: Any, w: Any) -> Any:
                return jnp.tanh(x @ w), None

            return jnp.sum(jax.lax.scan(jax.checkpoint(body) if again else body, X, w)[0])

        return jax.grad(fun)(w)

    plain, again = (fw.jax.probe(layers, stacked, flag) for flag in (False, True))
    (site,) = plain.matrix_sites
    assert (site.path, site.weights, site.calls, site.flops) == (":matmul", ("w",), 3, 3 * 2 * 32 * 16 * 16)
    assert again.matrix_sites == (site,)
    for role in ("input", "output", "grad_output"):
        first, second = (recording.summaries[":matmul", role] for recording in (plain, again))
        assert first.observations == second.observations == 3
        assert first.amax == pytest.approx(second.amax, rel=1e-6)


def test_products_in_16_bits_are_looked_at_in_float32_and_told() -> None:
    w = jnp.full((16, 4), 5000.0, jnp.float16)

    def fun(w: Any) -> Any:
        return jnp.sum((jnp.asarray(X, jnp.float16) @ w).astype(jnp.float32) * 1e-9)

    found = fw.jax.probe(jax.jit(lambda w: jax.grad(fun)(w)), w)
    exact = np.asarray(X, np.float16).astype(np.float32) @ np.full((16, 4), 5000.0, np.float32)
    assert found.summaries[":matmul", "output"].amax == pytest.approx(np.abs(exact).max(), rel=1e-5)
    assert {(kind, detail) for kind, _, detail in found.found} == {
        ("found_low_precision_products", "float16"),
        ("found_stored_in_16_bits", "float16"),
    }


def test_flax_loss_scale_is_taken_out_and_told() -> None:
    from flax.training.dynamic_scale import DynamicScale

    @jax.jit
    def scaled(p: Any) -> Any:
        return DynamicScale(scale=1024.0).value_and_grad(loss)(p, X, Y)[3]

    found, plain = fw.jax.probe(scaled, PARAMS), fw.jax.probe(step, PARAMS, (X, Y))
    assert ("found_loss_scale", "", "flax.training.dynamic_scale.DynamicScale") in found.found
    assert found.losses == pytest.approx(plain.losses, rel=1e-6)
    for key in (("first.w", "weight_grad"), ("first", "grad_output")):
        assert found.summaries[key].amax == pytest.approx(plain.summaries[key].amax, rel=1e-5)


def wide(huge: float) -> Recording:
    """A network whose second layer returns values of about 2.5 × `huge`."""
    params = {
        name: {"w": jnp.asarray(RNG.normal(size=(256, 256)) / 16, jnp.float32), "b": jnp.zeros(256)}
        for name in ("one", "two", "three", "four")
    }
    params["two"]["w"] *= huge
    data = jnp.asarray(RNG.normal(size=(256, 256)), jnp.float32)

    def fun(p: Any) -> Any:
        x = data
        for name in params:
            x = jnp.tanh(x @ p[name]["w"] + p[name]["b"])
        return jnp.mean(x**2)

    found: Recording = fw.jax.probe(jax.jit(lambda p: jax.grad(fun)(p)), params)
    return found


def test_the_planner_takes_float16_with_a_window() -> None:
    decision = decide(wide(1.0), get_device("nvidia-t4"), False, 1)
    assert (decision.recipe, decision.islands) == ("fp16-mixed", ())
    assert decision.loss_scale is not None
    low, high = decision.loss_scale.window_log2
    assert low < high


def test_the_planner_keeps_in_float32_what_float16_does_not_hold() -> None:
    decision = decide(wide(1e5), get_device("nvidia-t4"), False, 1)
    assert decision.recipe == "fp16-mixed"
    assert [island.module for island in decision.islands] == ["two"]


def branches(p: Any) -> Any:
    value = jnp.sum(p["second"]["w"] * 2)
    return value if value > 0 else -value


@pytest.mark.parametrize(
    ("wrong", "steps", "message"),
    [
        (lambda p: p, 1, "computed no gradient"),
        (lambda p: jax.grad(branches)(p), 1, "cannot trace"),
        (step, 0, "steps=0"),
    ],
)
def test_a_step_that_shows_nothing_is_refused(wrong: Any, steps: int, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        fw.jax.probe(wrong, PARAMS, steps=steps)


def test_an_error_of_the_steps_own_comes_through_and_leaves_nothing() -> None:
    before = jax.grad

    def fails(p: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fw.jax.probe(lambda p: jax.grad(fails)(p), PARAMS)
    assert jax.grad is before

# SPDX-License-Identifier: Apache-2.0
"""The loss scale's bounds, its arithmetic and its account; first what the libraries' own scales do."""

from __future__ import annotations

import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp  # type: ignore[import-untyped]
import pytest
from flax.training.dynamic_scale import DynamicScale

import floatwise as fw
from floatwise.errors import BadInputError, NonFiniteGradientsError, PlanError
from floatwise.jax import LossScale


@jax.jit
def nan_step(scale: LossScale) -> LossScale:
    return fw.jax.value_and_grad(lambda p: p * jnp.nan, scale)(jnp.float32(1)).loss_scale


@jax.jit
def good_step(scale: LossScale) -> Any:
    return fw.jax.value_and_grad(lambda p: p * 1e-3, scale)(jnp.float32(1))


def test_flax_falls_to_nothing_after_200_nan_steps() -> None:
    step = jax.jit(lambda scale: scale.value_and_grad(lambda p: p * jnp.nan)(jnp.float32(1))[0])
    scale = DynamicScale()
    for _ in range(200):
        scale = step(scale)
    assert float(scale.scale) < 1e-37


def test_200_nan_steps_end_at_the_floor_and_training_goes_on() -> None:
    scale = LossScale.dynamic(growth_interval=5)
    for _ in range(200):
        scale = nan_step(scale)
    report = scale.report()
    assert (report.scale, report.skipped_steps, report.can_fall, report.loss_was_bad) == (1.0, 200, False, True)
    got = good_step(scale)
    assert bool(got.finite)
    assert float(got.grads) == pytest.approx(1e-3)
    for _ in range(40):
        scale = good_step(scale).loss_scale
    assert scale.report().scale == 2.0**8
    assert scale.report().consecutive_skips == 0


def skips_until_float16_fits(step: Any, scale: Any) -> int:
    """Returns how many steps are skipped until the gradient 1 of a float16 value is finite when scaled."""
    for skipped in range(200):
        scale, finite = step(scale)
        if bool(finite):
            return skipped
    return 200


def float16_loss(p: jax.Array) -> jax.Array:
    return p.astype(jnp.float16).astype(jnp.float32)


def test_flax_grows_without_a_cap_and_then_skips_a_hundred_steps() -> None:
    # google/flax#2547: the scale reached infinity and never came back; 0.12 ends at float32's largest value.
    step = jax.jit(lambda scale: scale.value_and_grad(lambda p: p * 0.0)(jnp.float32(1))[0])
    scale = DynamicScale(growth_interval=1, scale=jnp.float32(2.0**100))
    for _ in range(60):
        scale = step(scale)
    assert float(scale.scale) > 2.0**127
    assert skips_until_float16_fits(jax.jit(lambda s: s.value_and_grad(float16_loss)(jnp.float32(1))[:2]), scale) > 100


@pytest.mark.parametrize("growth", ["headroom", "fixed"])
def test_growth_ends_at_the_ceiling(growth: str) -> None:
    scale = LossScale.dynamic(growth_interval=1, growth=growth)
    step = jax.jit(lambda scale: fw.jax.value_and_grad(lambda p: p * 0.0, scale)(jnp.float32(1)).loss_scale)
    for _ in range(60):
        scale = step(scale)
    assert scale.report().scale == 2.0**24
    assert scale.report().at_ceiling

    def attempt(scale: LossScale) -> Any:
        got = fw.jax.value_and_grad(float16_loss, scale)(jnp.float32(1))
        return got.loss_scale, got.finite

    assert skips_until_float16_fits(jax.jit(attempt), scale) == 9


def test_jmp_loses_its_floor_in_jit() -> None:
    scale = jmp.DynamicLossScale(jnp.float32(4), min_loss_scale=jnp.float32(4))
    assert float(scale.adjust(jnp.bool_(False)).loss_scale) == 4
    assert float(jax.jit(lambda scale: scale.adjust(jnp.bool_(False)))(scale).loss_scale) == 2


def test_the_floor_goes_through_jit_scan_and_vmap() -> None:
    scale = LossScale.dynamic(initial_scale=4.0, floor=4.0)

    def back_off(scale: LossScale) -> LossScale:
        return scale.update(jnp.bool_(False))

    assert float(jax.jit(back_off)(scale).value) == 4
    assert float(jax.lax.scan(lambda s, _: (back_off(s), None), scale, None, length=3)[0].value) == 4
    many: Any = jax.vmap(scale.update)(jnp.array([True, False]))
    assert many.skipped_steps.tolist() == [0, 1]


def test_jmp_fails_with_a_float16_scale() -> None:
    scale = jmp.DynamicLossScale(jnp.float16(2**15))
    with pytest.raises(Exception, match="float16"):  # google-deepmind/jmp#47
        jax.lax.cond(True, lambda s: s.adjust(jnp.bool_(False)), lambda s: s, scale)


def test_a_float16_loss_is_refused_and_other_losses_become_float32() -> None:
    scale = LossScale.static(2.0**16)
    assert jnp.isinf(jnp.float32(2.0**16).astype(jnp.float16))  # its gradient would be this
    with pytest.raises(BadInputError, match=r"float16 loss.*output=float32"):
        scale.scale(jnp.float16(1))
    assert scale.scale({"a": jnp.bfloat16(1), "b": 2.0}) == {"a": 2.0**16, "b": 2.0**17}
    assert scale.scale(jnp.bfloat16(1)).dtype == jnp.float32


def test_float16_gradients_are_unscaled_without_loss() -> None:
    scale = LossScale.static(2.0**16)
    grads: Any = {"half": jnp.float16(2.0**-14), "brain": jnp.bfloat16(1), "full": jnp.float32(1)}
    grads |= {"int": jnp.int32(3), "no": None}
    got = scale.unscale(grads)
    assert jnp.float16(2.0**-14) / jnp.float16(2.0**15) == 0  # what float16 makes of it
    assert (got["half"].dtype, float(got["half"])) == (jnp.float32, 2.0**-30)
    assert (got["brain"].dtype, float(got["brain"])) == (jnp.bfloat16, 2.0**-16)
    assert (float(got["full"]), int(got["int"]), got["no"]) == (2.0**-16, 3, None)


def test_it_follows_the_plan() -> None:
    plan = fw.plan.recipe("fp16-mixed", loss_scale=fw.plan.LossScale(initial_scale=512.0, hysteresis=2))
    assert LossScale.from_plan(plan).report().scale == 512
    assert LossScale.from_plan(plan).settings.hysteresis == 2
    without = LossScale.from_plan(fw.plan.recipe("bf16-mixed"))
    assert good_step(without).loss_scale.report().scale == 1
    assert nan_step(without).report().skipped_steps == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LossScale.dynamic(initial_scale=-1.0), PlanError, "initial_scale"),
        (lambda: LossScale.dynamic(floor=2.0**127), PlanError, "floor"),
        (lambda: LossScale.dynamic(interval=3), PlanError, "did you mean 'growth_interval'"),
        (lambda: LossScale.static(2.0**127), BadInputError, r"expected 2\*\*-126 to 2\*\*126"),
    ],
)
def test_wrong_settings_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_the_alarm_names_the_gradients() -> None:
    scale = LossScale.dynamic(initial_scale=2.0)
    grads = {"body": {"w": jnp.array([1.0, jnp.inf, jnp.nan])}, "head": jnp.ones(2)}
    for _ in range(3):
        scale.raise_if_stuck(alarm_after=3, grads=grads)
        scale = scale.update(fw.jax.all_finite(grads))
    with pytest.raises(NonFiniteGradientsError) as raised:
        scale.raise_if_stuck(alarm_after=3, grads=grads)
    assert raised.value.consecutive_skips == 3
    assert str(raised.value).startswith(
        "3 steps in a row were skipped for gradients that are not finite, at loss scale 1, which falls no further. "
        "Not finite are 1 of 2 gradients: body.w (shape [3], 1 infinite and 1 NaN of 3 values). The loss was finite"
    )


def test_select_takes_trees_with_functions() -> None:
    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    with pytest.raises(Exception, match=r"as a JAX value|valid JAX type"):
        jmp.select_tree(jnp.bool_(True), model, model)
    other = jax.tree.map(lambda leaf: leaf + 1 if eqx.is_array(leaf) else leaf, model)
    got = fw.jax.select(jnp.bool_(False), other, model)
    assert bool(eqx.tree_equal(got, model))
    keys = fw.jax.select(jnp.bool_(True), jax.random.split(jax.random.key(1)), jax.random.split(jax.random.key(2)))
    assert (jax.random.key_data(keys) == jax.random.key_data(jax.random.split(jax.random.key(1)))).all()


def test_it_goes_through_pickles_and_leaves() -> None:
    scale = nan_step(LossScale.dynamic(hysteresis=2))
    copies = [pickle.loads(pickle.dumps(scale)), jax.tree.unflatten(jax.tree.structure(scale), jax.tree.leaves(scale))]
    assert [copy.report() for copy in copies] == [scale.report()] * 2
    assert [nan_step(copy).report().scale for copy in copies] == [2.0**15] * 2

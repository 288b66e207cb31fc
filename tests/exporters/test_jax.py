# SPDX-License-Identifier: Apache-2.0
"""JAX written and read: jmp's policy strings in all their forms, Flax dtypes, DynamicScale."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, BadInputError, PlanError
from floatwise.exporters.jax.policy_string import PolicyString, parse_policy_string, policy_string
from floatwise.plan import LossScale, ModulePolicy, Policy, recipe

FORMATS = st.sampled_from(("float32", "bfloat16", "float16"))
MODULES = (
    ModulePolicy(module="encoder.**", policy=Policy(compute_dtype="float32")),
    ModulePolicy(module="encoder.proj", policy=Policy(compute_dtype="float16", output_dtype="float16")),
)

GOLDEN = r"""import re

import jax
import jax.numpy as jnp
from flax.training.dynamic_scale import DynamicScale

jax.config.update("jax_default_matmul_precision", "float32")
# For jmp.get_policy(POLICY), and for the reader: weights, arithmetic, outputs.
POLICY = "params=float32,compute=float16,output=float32"
# Modules that compute in another format: the plan's glob, the same as a regular expression, and the dtype.
MODULES = {
    "encoder.**": (r"encoder(?:\.[^\.]+)*", jnp.float32),
    "encoder.proj": (r"encoder\.proj", jnp.float16),
}


# nn.Dense(256, **dtypes("encoder.dense")), in flax.linen and nnx: without dtype= modules promote to float32.
def dtypes(path):
    found = [dtype for regex, dtype in MODULES.values() if re.fullmatch(regex, path, re.DOTALL)]
    return {"dtype": [jnp.float16, *found][-1], "param_dtype": jnp.float32}


# The loss takes to_output(model(...)).
def to_output(tree):
    dtype = jnp.float32
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


# dynamic_scale, is_finite, loss, grads = dynamic_scale.value_and_grad(loss_fn)(params): grads are unscaled.
# Keep params and optimizer state where is_finite is False:
# jax.tree.map(functools.partial(jnp.where, is_finite), new, old)
DYNAMIC_SCALE = DynamicScale(
    scale=1024.0,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=2000,
    minimum_scale=1.0,
)
"""


def test_the_source_is_as_expected() -> None:
    plan = recipe("fp16-mixed", modules=MODULES, loss_scale=LossScale(initial_scale=1024.0))
    assert exported(plan, "jax").text == GOLDEN


def test_the_floor_and_the_output_are_kept() -> None:
    scale = LossScale(initial_scale=8.0, floor=2.0, growth_factor=4.0, backoff_factor=0.25)
    plan = recipe("fp16-mixed", loss_scale=scale, policy=Policy(compute_dtype="float16", output_dtype="float16"))
    found = exported(plan, "jax").reading.plan
    assert found.policy == plan.policy
    assert found.loss_scale is not None
    assert (found.loss_scale.floor, found.loss_scale.growth_factor) == (2.0, 4.0)


@pytest.mark.parametrize(("name", "precision"), [("fp32", "float32"), ("tf32", "tensorfloat32")])
def test_float32_products_are_computed_as_the_plan_says(name: str, precision: str) -> None:
    result = exported(recipe(name), "jax")
    assert f'jax.config.update("jax_default_matmul_precision", "{precision}")\n' in result.text
    assert result.reading.plan.recipe == name


def test_weights_in_16_bits_stay_in_float32_and_it_is_said() -> None:
    assert "need no master weights" in said(exported(recipe("bf16-master"), "jax"))["weights.master"]


def test_float8_is_refused_with_the_way_to_it() -> None:
    with pytest.raises(PlanError, match="Fp8DirectDotGeneralOp"):
        exported(recipe("fp8-tensorwise"), "jax")


@given(FORMATS, FORMATS, FORMATS)
def test_a_policy_string_reads_back(param: str, compute: str, output: str) -> None:
    assert parse_policy_string(policy_string(param, compute, output)) == PolicyString(param, compute, output)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c=bf16", PolicyString("float32", "bfloat16", "bfloat16")),
        ("p=f32,c=f16,o=full", PolicyString("float32", "float16", "float32")),
        ("p=bf16", PolicyString("bfloat16", "bfloat16", "bfloat16")),
        ("o=f32", PolicyString("float32", "float32", "float32")),
        ("bf16", PolicyString("bfloat16", "bfloat16", "bfloat16")),
        ("half", PolicyString("float16", "float16", "float16", has_half=True)),
        (" params = f32, compute = bf16 ", PolicyString("float32", "bfloat16", "bfloat16", jmp_refuses=True)),
        ("compute=fp16", PolicyString("float32", "float16", "float16", jmp_refuses=True)),
    ],
)
def test_policy_strings_are_read_as_jmp_reads_them(text: str, expected: PolicyString) -> None:
    assert parse_policy_string(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=f32", "got the key 'x' in 'x=f32', expected params, compute or output"),
        (
            "compute=bfloat",
            "got the dtype 'bfloat' in 'compute=bfloat', expected float32, bfloat16 or float16; did you",
        ),
        ("compute=float64", "got the dtype 'float64' in 'compute=float64', expected float32, bfloat16 or float16"),
        ("compute=", "got the dtype '' in 'compute='"),
    ],
)
def test_bad_policy_strings_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInputError) as error:
        parse_policy_string(text)
    assert str(error.value).startswith(message)


IEEE = "jax.config.update('jax_default_matmul_precision', 'highest')\n"


@pytest.mark.parametrize(
    ("source", "formats", "codes"),
    [
        ("jmp.get_policy('c=bf16')", ("float32", "bfloat16", "bfloat16"), ["matmul-by-device"]),
        (IEEE + "P = 'p=f32, c=bf16, o=f32'", ("float32", "bfloat16", "float32"), ["jmp-refuses"]),
        (IEEE + "jmp.get_policy('half')", ("float16", "float16", "float16"), ["half-by-device", "pure-16-bit"]),
        (IEEE + "nn.Dense(4, dtype=jnp.bfloat16)", ("float32", "bfloat16", "bfloat16"), []),
        (
            IEEE + "nnx.Linear(4, 4, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, rngs=r)",
            ("bfloat16", "bfloat16", "bfloat16"),
            ["pure-16-bit"],
        ),
    ],
)
def test_scripts_are_read(source: str, formats: tuple[str, str, str], codes: list[str]) -> None:
    found = reading(source, "jax")
    policy = found.plan.policy
    assert (policy.param_dtype, policy.compute_dtype, policy.output_dtype) == formats
    assert [f.code for f in found.findings if f.code != "no-loss-scale"] == codes


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("DynamicScale()", {"initial_scale": 65536.0, "floor": 2.0**-126, "growth_interval": 2000}),
        (
            "jmp.DynamicLossScale(jnp.float32(2**10), period=100, factor=4)",
            {"initial_scale": 1024.0, "floor": 1.0, "growth_interval": 100, "backoff_factor": 0.25},
        ),
        ("jmp.StaticLossScale(jnp.float32(64.0))", {"mode": "static", "initial_scale": 64.0}),
    ],
)
def test_loss_scales_of_flax_and_jmp_are_read(source: str, expected: dict[str, Any]) -> None:
    scale = reading(f"{IEEE}P = 'c=f16'\ns = {source}", "jax").plan.loss_scale
    assert scale is not None
    assert {key: getattr(scale, key) for key in expected} == expected


BAD = [
    ("x = 1", "given:1: there is no policy string and no dtype= of a Flax module in this source"),
    ("\nPOLICY = 'params=f32,compute=bf17'", "given:2: POLICY: got the dtype 'bf17'"),
    (
        "P = 'c=bf16'\njax.config.update('jax_default_matmul_precision', 'bfloat16')",
        'given:2: update: got "bfloat16" for jax_default_matmul_precision, which no plan can name',
    ),
    ("P = 'c=f16'\nDynamicScale(growth_interval=0)", "given:2: DynamicScale.growth_interval: got 0, expected a whole"),
    (
        "P = 'c=f16'\nDynamicScale(min_scale=1.0)",
        "given:2: DynamicScale.min_scale: JAX knows no such key; did you mean 'minimum_scale'",
    ),
    (
        "P = 'c=f16'\nDynamicScale(scale=1.0, minimum_scale=2.0)",
        "given:2: DynamicScale.floor: got 2.0, above initial_scale = 1.0",
    ),
    ("P = 'c=bf16'\nMODULES = {'a[': ('', jnp.float32)}", "given:2: MODULES: got the module glob 'a['"),
]


@pytest.mark.parametrize(("source", "message"), BAD)
def test_bad_sources_are_told_with_their_line(source: str, message: str) -> None:
    with pytest.raises(BadFileError) as error:
        reading(source, "jax")
    assert str(error.value).startswith(message)

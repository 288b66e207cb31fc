# SPDX-License-Identifier: Apache-2.0
"""jmp's grammar of policies: what jmp reads alike, and what it cannot read or reads otherwise."""

from __future__ import annotations

import jmp  # type: ignore[import-untyped]
import pytest

import floatwise as fw
from floatwise.errors import BadInputError, PlanError, UnknownNameError
from floatwise.jax.policy_text import as_policy
from floatwise.plan import Plan, Policy


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("params=float32,compute=bfloat16,output=float32", "params=float32,compute=bfloat16,output=float32"),
        ("p=f32,c=bf16,o=f32", "params=float32,compute=bfloat16,output=float32"),
        (" p = f32 , c = f16 , o = bf16 ", "params=float32,compute=float16,output=bfloat16"),
        ("o=f32,p=f32,c=f16", "params=float32,compute=float16,output=float32"),
        ("params=full,compute=half,output=full", "params=float32,compute=float16,output=float32"),
        ("bf16", "params=bfloat16,compute=bfloat16,output=bfloat16"),
        ("half", "params=float16,compute=float16,output=float16"),
        ("c=f16", "params=float32,compute=float16,output=float32"),
        ("p=bf16", "params=bfloat16,compute=bfloat16,output=float32"),
        ("c=float8_e4m3fn,o=bf16", "params=float32,compute=float8_e4m3fn,output=bfloat16"),
        ("p=f32, c=e4m3", "params=float32,compute=float8_e4m3fn,output=float32"),
    ],
)
def test_text_is_read_and_printed_in_full(text: str, canonical: str) -> None:
    assert fw.jax.format_policy(fw.jax.parse_policy(text)) == canonical
    assert fw.jax.format_policy(fw.jax.parse_policy(canonical)) == canonical


@pytest.mark.parametrize("text", ["p=f32,c=bf16,o=f32", "p=f16,c=f16,o=f32", "bf16", "full"])
def test_jmp_reads_what_is_printed_alike(text: str) -> None:
    assert str(jmp.get_policy(fw.jax.format_policy(fw.jax.parse_policy(text)))) == str(jmp.get_policy(text))


@pytest.mark.parametrize("text", ["p=f32, c=bf16", "c=float8_e4m3fn"])
def test_jmp_refuses_spaces_and_float8(text: str) -> None:
    with pytest.raises(ValueError, match="Unknown"):
        jmp.get_policy(text)
    fw.jax.parse_policy(text)


def test_jmp_hands_out_the_compute_format_when_no_output_is_named() -> None:
    assert str(jmp.get_policy("c=f16")) == "p=full,c=f16,o=f16"
    assert fw.jax.parse_policy("c=f16").output_dtype == "float32"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("compute=bfloat16,weights=float32", BadInputError, "got 'weights=float32' in the policy"),
        ("p=f32,,c=bf16", BadInputError, "got '' in the policy"),
        ("p=f32,p=bf16", BadInputError, "got params= twice"),
        ("p=f32,c=", BadInputError, "got no format"),
        ("", BadInputError, "got no format"),
        ("c=bfloat17", UnknownNameError, "did you mean 'bfloat16'"),
        ("c=float8_e5m2", PlanError, "its two mantissa bits serve gradients only"),
        ("p=float64", PlanError, "nothing in a plan is wider than float32"),
        ("o=e4m3", PlanError, "float8 is cast just before a matrix product"),
    ],
)
def test_what_is_wrong_is_named(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fw.jax.parse_policy(text)


def test_recipes_and_plans_are_policies_too() -> None:
    plan = fw.plan.recipe("fp16-mixed")
    assert as_policy("fp16-mixed") == plan
    assert fw.jax.format_policy(plan) == "params=float32,compute=float16,output=float32"
    assert isinstance(as_policy("bf16-mixed"), Plan)
    assert isinstance(as_policy("c=bf16"), Policy)

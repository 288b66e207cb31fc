# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine's recipes written by version and read; the classes and arguments are those of its tags."""

from __future__ import annotations

import pytest
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, PlanError
from floatwise.exporters import get_system
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.version import Version
from floatwise.plan import Policy, recipe

GOLDEN = """import contextlib

import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import Float8CurrentScaling, Format

# Build the model of TransformerEngine's modules (te.Linear, te.LayerNormLinear, te.TransformerLayer), weights
# in float32, and run forward under precision(), backward outside it. Where float8 must not go keep torch.nn.
RECIPE = Float8CurrentScaling(
    fp8_format=Format.HYBRID,
)


@contextlib.contextmanager
def precision():
    with torch.autocast("cuda", dtype=torch.bfloat16), te.autocast(enabled=True, recipe=RECIPE):
        yield
"""


def test_the_source_is_as_expected() -> None:
    assert exported(recipe("fp8-tensorwise"), "transformer-engine").text == GOLDEN


@pytest.mark.parametrize(
    ("name", "version", "made", "context"),
    [
        ("fp8-tensorwise", "2.20.2", "Float8CurrentScaling", "te.autocast(enabled=True, recipe="),
        ("fp8-tensorwise", "2.8", "Float8CurrentScaling", "te.fp8_autocast(enabled=True, fp8_recipe="),
        ("fp8-tensorwise", "2.1", "DelayedScaling", "te.fp8_autocast("),
        ("fp8-rowwise", "2.20.2", "Float8BlockScaling", "te.autocast("),
        ("fp8-rowwise", "2.2", "Float8CurrentScaling", "te.fp8_autocast("),
        ("fp8-rowwise-gw-hp", "2.3", "Float8BlockScaling", "te.fp8_autocast("),
        ("mxfp8", "2.0", "MXFP8BlockScaling", "te.fp8_autocast("),
    ],
)
def test_recipe_and_context_are_those_of_the_version(name: str, version: str, made: str, context: str) -> None:
    text = exported(recipe(name), "transformer-engine", version=version).text
    assert f"RECIPE = {made}(\n" in text
    assert context in text


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("fp8-rowwise-gw-hp", "2.20.2", "Gradients of weights are products in float8 too"),
        ("fp8-rowwise", "2.2", "one scale factor per tensor only"),
    ],
)
def test_what_is_lost_of_the_scaling_is_said(name: str, version: str, words: str) -> None:
    assert words in said(exported(recipe(name), "transformer-engine", version=version))["scaling"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fp8-rowwise", "compute capability 9.0 and CUDA 12.9"),
        ("mxfp8", "compute capability 10.x only"),
        ("fp8-tensorwise", "DelayedScaling() would take factors from earlier steps"),
    ],
)
def test_the_devices_needed_are_told(name: str, words: str) -> None:
    notes = exported(recipe(name), "transformer-engine").notes
    assert any(words in note.what.en for note in notes if not note.fields)


@pytest.mark.parametrize(
    ("plan", "version", "message"),
    [
        (recipe("bf16-mixed"), "2.20.2", "Export to torch-amp"),
        (recipe("mxfp8"), "1.13", "Use TransformerEngine 2.0 or newer"),
        (recipe("fp8-tensorwise", policy=Policy(compute_dtype="float8_e4m3fnuz")), "2.20.2", "have no e4m3fnuz"),
    ],
)
def test_what_it_cannot_train_is_refused(plan: object, version: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        exported(plan, "transformer-engine", version=version)  # type: ignore[arg-type]


CAST = "torch.autocast('cuda', dtype=torch.bfloat16)\n"


@pytest.mark.parametrize(
    ("source", "scaling", "codes"),
    [
        (CAST + "r = recipe.DelayedScaling(margin=0)", "tensorwise", ["delayed-scaling"]),
        (CAST + "te.fp8_autocast(enabled=True)", "tensorwise", ["recipe-by-device"]),
        ("r = recipe.MXFP8BlockScaling()", "mx", ["float8-without-autocast"]),
        (CAST + "te.autocast(recipe=Float8BlockScaling(x_block_scaling_dim=1))", "rowwise", []),
        ("r = MXFP8BlockScaling()\nte.Linear(8, 8, params_dtype=torch.bfloat16)", "mx", ["pure-16-bit"]),
        (CAST + "te.fp8_autocast(enabled=False)", None, ["recipe-by-device"]),
    ],
)
def test_scripts_are_read_with_what_is_dangerous(source: str, scaling: str | None, codes: list[str]) -> None:
    found = reading(source, "transformer-engine")
    assert found.plan.scaling == scaling
    assert [finding.code for finding in found.findings] == codes


@pytest.mark.parametrize(
    ("source", "version", "message"),
    [
        ("torch.autocast('cuda')", "2.20.2", "given:1: there is no recipe and no fp8_autocast(...) in this source"),
        (
            "\nr = DelayedScaling(fp8_format=recipe.Format.E5M2)",
            "2.20.2",
            "given:2: DelayedScaling.fp8_format: got recipe.Format.E5M2, expected Format.HYBRID or Format.E4M3",
        ),
        ("r = NVFP4BlockScaling()", "2.20.2", "given:1: NVFP4BlockScaling: no plan stands for this recipe"),
        (
            "r = DelayedScaling(amax_history_len=0)",
            "2.20.2",
            "given:1: DelayedScaling.amax_history_len: got 0, expected a whole number from 1",
        ),
        (
            "r = DelayedScaling(interval=1)",
            "2.3",
            "given:1: DelayedScaling.interval: TransformerEngine 2.3 does not have this key; it is there before 2.2 "
            "only: delete it",
        ),
        (
            "r = Float8CurrentScaling(use_power_2_scales=True)",
            "2.4",
            "given:1: Float8CurrentScaling.use_power_2_scales: TransformerEngine 2.4 does not have this key; it is "
            "there since 2.8",
        ),
        (
            "r = DelayedScaling(amax_compute_alg='max')",
            "2.20.2",
            "given:1: DelayedScaling.amax_compute_alg: TransformerEngine knows no such key; did you mean "
            "'amax_compute_algo'",
        ),
    ],
)
def test_bad_sources_are_told_with_their_line(source: str, version: str, message: str) -> None:
    settings = settings_of_text(source, "python", "given")
    with pytest.raises(BadFileError) as error:
        read_settings(settings, get_system("transformer-engine"), Version.of(version))
    assert str(error.value).startswith(message)

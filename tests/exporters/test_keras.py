# SPDX-License-Identifier: Apache-2.0
"""Keras' policies and LossScaleOptimizer written by version and read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, PlanError
from floatwise.exporters import get_system
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.system import Reading
from floatwise.exporters.version import Version
from floatwise.plan import LossScale, ModulePolicy, Policy, recipe

MODULES = (
    ModulePolicy(module="encoder.**", policy=Policy(compute_dtype="float32")),
    ModulePolicy(module="encoder.proj", policy=Policy(compute_dtype="float16", output_dtype="float16")),
    ModulePolicy(module="head", policy=Policy(compute_dtype="float32")),
)

GOLDEN = r"""import keras

# Import this before the first layer is made: a layer takes the policy of that moment.
# Layers of a Sequential or a subclassed model have its name before their path: write it here with a slash. For
# keras.Model(inputs, outputs) leave it empty. To see them:
# [(layer.path, layer.compute_dtype) for layer in model._flatten_layers()]
ROOT = ""
# The plan's glob, the same as a regular expression over Keras' paths, and the policy.
MODULES = {
    "encoder.**": ("(?!(?:encoder/proj)$)(?!(?:head)$)encoder(?:/[^/]+)*", "float32"),
    "encoder.proj": ("encoder/proj", "mixed_float16"),
    "head": ("head", "float32"),
}
POLICY = keras.dtype_policies.DTypePolicyMap(
    default_policy="mixed_float16",
    policy_map={f"^{ROOT}(?:{regex})$": keras.DTypePolicy(name) for regex, name in MODULES.values()},
)
keras.config.set_dtype_policy(POLICY)


# keras.Model(inputs, in_float32(outputs)): the loss, and any softmax before it, see float32.
def in_float32(outputs):
    return keras.layers.Activation("linear", dtype="float32")(outputs)


# model.compile(optimizer=scaled(optimizer), ...): compile() wraps no optimizer a second time; clipping belongs
# to the inner optimizer.
def scaled(optimizer):
    return keras.optimizers.LossScaleOptimizer(
        optimizer,
        initial_scale=65536.0,
        dynamic_growth_steps=2000,
    )
"""


def read_for(source: str, version: str) -> Reading:
    return read_settings(settings_of_text(source, "python", "given"), get_system("keras"), Version.of(version))


def test_the_source_is_as_expected() -> None:
    result = exported(recipe("fp16-mixed", modules=MODULES), "keras")
    assert result.text == GOLDEN
    assert [(e.module, e.policy.compute_dtype) for e in result.reading.plan.modules] == [
        ("encoder.**", "float32"),
        ("encoder.proj", "float16"),
        ("head", "float32"),
    ]


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("3.15.1", ("import keras", "keras.config.set_dtype_policy", "keras.optimizers.LossScaleOptimizer(")),
        ("3.0.5", ("import keras", "keras.mixed_precision.set_dtype_policy", "keras.optimizers.LossScaleOptimizer(")),
        (
            "2.15.0",
            (
                "from tensorflow import keras",
                "keras.mixed_precision.set_global_policy",
                "keras.mixed_precision.LossScaleOptimizer(",
            ),
        ),
    ],
)
def test_names_are_those_of_the_version(version: str, lines: tuple[str, str, str]) -> None:
    package, setter, scaler = lines
    text = exported(recipe("fp16-mixed"), "keras", version=version).text
    assert text.startswith(f"{package}\n")
    assert f'{setter}("mixed_float16")\n' in text
    assert f"    return {scaler}\n" in text


def test_without_a_map_islands_are_lost_and_it_is_said() -> None:
    lost = said(exported(recipe("bf16-mixed", modules=MODULES[2:]), "keras", version="3.3.3"))
    assert lost['modules["head"].policy.compute_dtype'] == "This version has no map of policies: islands are lost."


@pytest.mark.parametrize(("version", "words"), [("3.15.1", "no floor"), ("2.15.0", "floor of the scale is 1")])
def test_the_floor_is_the_versions(version: str, words: str) -> None:
    scale = LossScale(floor=2.0)
    assert words in said(exported(recipe("fp16-mixed", loss_scale=scale), "keras", version=version))["loss_scale.floor"]


def test_a_static_scale_never_grows() -> None:
    scale = LossScale(mode="static", initial_scale=128.0)
    result = exported(recipe("fp16-mixed", loss_scale=scale), "keras")
    assert "initial_scale=128.0,\n        dynamic_growth_steps=2147483647,\n" in result.text
    assert "an overflow still halves it" in said(result)["loss_scale.mode"]


def test_float8_is_refused_with_the_way_to_it() -> None:
    with pytest.raises(PlanError, match=r'model\.quantize\("float8"\)'):
        exported(recipe("fp8-tensorwise"), "keras")


SET = "keras.config.set_dtype_policy"


@pytest.mark.parametrize(
    ("source", "version", "scale", "codes"),
    [
        (f"{SET}('mixed_float16')\nm.compile('sgd')", "3.15.1", 2.0**15, []),
        (f"{SET}('mixed_float16')\nm.compile('sgd', auto_scale_loss=False)", "3.15.1", 65536.0, ["no-scale-added"]),
        (f"{SET}(keras.dtype_policies.DTypePolicyMap('mixed_float16'))", "3.15.1", 65536.0, ["no-scale-added"]),
        (f"{SET}('float16')", "3.15.1", 65536.0, ["no-scale-added", "pure-16-bit"]),
        ("keras.backend.set_floatx('float16')", "3.15.1", 65536.0, ["no-scale-added", "pure-16-bit"]),
        (f"{SET}('mixed_float16')\nL = LossScaleOptimizer(LossScaleOptimizer(o))", "3.15.1", 2.0**15, ["scaled-twice"]),
        (f"{SET}('mixed_float16')\nDense(9, activation='softmax')", "3.15.1", 2.0**15, ["softmax-in-float16"]),
        (f"{SET}('mixed_float16')\nDense(9, activation='softmax', dtype='float32')", "3.15.1", 2.0**15, []),
        ("set_global_policy('mixed_float16')\nLossScaleOptimizer(o, initial_scale=8)", "2.15", 8.0, []),
        ("set_global_policy(mixed_precision.Policy('mixed_bfloat16'))", "2.15", None, []),
        (f"{SET}('mixed_bfloat16')\nLossScaleOptimizer(o)", "3.15.1", None, ["idle-loss-scale"]),
    ],
)
def test_scripts_are_read_as_compile_would(source: str, version: str, scale: float | None, codes: list[str]) -> None:
    found = read_for(source, version)
    assert (found.plan.loss_scale and found.plan.loss_scale.initial_scale) == scale
    assert [f.code for f in found.findings if f.code != "no-loss-scale"] == codes


def test_keras_2_has_a_floor_and_a_static_scale() -> None:
    dynamic = read_for("set_global_policy('mixed_float16')", "2.15").plan.loss_scale
    static = read_for(
        "set_global_policy('mixed_float16')\nLossScaleOptimizer(o, dynamic=False, initial_scale=64)", "2.15"
    ).plan.loss_scale
    assert dynamic is not None
    assert static is not None
    assert (dynamic.floor, static.mode, static.initial_scale) == (1.0, "static", 64.0)


def test_a_map_that_is_written_out_gives_modules() -> None:
    source = (
        f"{SET}(DTypePolicyMap('mixed_bfloat16', "
        "{'net/head': 'float32', 'enc/.*': DTypePolicy('float32'), 'a|b': 'float32'}))"
    )
    assert [e.module for e in read_for(source, "3.15.1").plan.modules] == ["net.head", "enc.**"]


def test_an_output_layer_in_float32_is_seen() -> None:
    source = f"{SET}('mixed_bfloat16')\nDense(3, dtype='float32')"
    assert reading(source, "keras").plan.policy.output_dtype == "float32"
    assert reading(f"{SET}('mixed_bfloat16')", "keras").plan.policy.output_dtype == "bfloat16"


BAD: list[Any] = [
    ("x = 1", "3.15.1", "given:1: there is no call of set_dtype_policy(...) in this source"),
    (
        f"{SET}('mixed_fp16')",
        "3.15.1",
        "given:1: set_dtype_policy: got 'mixed_fp16', expected one of 'float32', 'mixed_bfloat16', 'mixed_float16', "
        "'bfloat16', 'float16'; did you mean 'mixed_float16'?",
    ),
    (f"{SET}(choose())", "3.15.1", "given:1: set_dtype_policy: got a policy known only when run"),
    (
        f"{SET}('mixed_float16')\nLossScaleOptimizer(o, dynamic=False)",
        "3.15.1",
        "given:2: LossScaleOptimizer.dynamic: Keras 3.15.1 does not have this key; it is there before 3.0 only: set "
        "loss_scale_factor on the inner optimizer",
    ),
    (
        f"{SET}('mixed_float16')\nLossScaleOptimizer(o, clipnorm=1.0)",
        "3.15.1",
        "given:2: LossScaleOptimizer.clipnorm: Keras knows no such key",
    ),
    (
        f"{SET}('mixed_float16')\nLossScaleOptimizer(o, initial_scale=0)",
        "3.15.1",
        "given:2: LossScaleOptimizer.initial_scale: got 0, expected a number above 0",
    ),
    (
        f"{SET}(DTypePolicyMap(default_policy='mixed_float16'))",
        "3.3",
        "given:1: DTypePolicyMap.default_policy: Keras 3.3 does not have this key; it is there since 3.4: give each "
        "layer its own dtype=",
    ),
    (
        f"{SET}('float32')\nMODULES = {{'a': ('a', 'fp32')}}",
        "3.15.1",
        "given:2: MODULES.a: got 'fp32', expected one of",
    ),
]


@pytest.mark.parametrize(("source", "version", "message"), BAD)
def test_bad_sources_are_told_with_their_line(source: str, version: str, message: str) -> None:
    with pytest.raises(BadFileError) as error:
        read_for(source, version)
    assert str(error.value).startswith(message)

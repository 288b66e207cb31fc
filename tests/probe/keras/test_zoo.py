# SPDX-License-Identifier: Apache-2.0
"""Unmodified Keras scripts recorded on each backend: their losses, places, values and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.probe.keras.zoo import BACKENDS, LOOPS, Shown, run_zoo

from floatwise.hardware import get_device
from floatwise.planner.judge import judge
from floatwise.probe.recording import Recording

pytest.importorskip("keras")
pytestmark = pytest.mark.slow

#: Scripts that every backend runs, alone as well where `+` says so, and further ones: compiling takes its time.
EVERYWHERE = ("sequential_digits+", "custom_train_step", "mixed_layers", "large_outputs", "inputs")
FURTHER = {
    "tensorflow": ("attention_text", "recurrent", "gan", "never_trains"),
    "jax": ("attention_text",),
    "torch": (
        "attention_text+",
        "recurrent",
        "gan",
        "mixed_global",
        "save_load",
        "never_trains",
        "functional_batchnorm",
        "subclassed",
        "compute_loss",
        "accumulation",
    ),
}
#: Training iterations of the scripts whose number of steps is not left to an early stop.
STEPS = {
    "sequential_digits": 6,
    "custom_train_step": 4,
    "attention_text": 4,
    "mixed_layers": 4,
    "large_outputs": 6,
    "gan": 4,
    "functional_batchnorm": 9,
    "subclassed": 5,
    "compute_loss": 4,
    "recurrent": 3,
    "accumulation": 6,
    "mixed_global": 4,
    "inputs": 8,
    "tensorflow_loop": 18,
    "jax_loop": 7,
    "torch_loop": 5,
}
#: Paths of the sites of matrix products: kind, m, n, k, FLOPs in an iteration.
PRODUCTS = {
    "sequential_digits": {
        "conv": ("conv2d", 4096, 8, 9, 2 * 4096 * 8 * 9),
        "hidden": ("linear", 64, 32, 128, 2 * 64 * 32 * 128),
        "logits": ("linear", 64, 10, 32, 2 * 64 * 10 * 32),
    },
    "attention_text": {
        "attention.query": ("einsum", 960, 8, 16, 2 * 40 * 12 * 16 * 16),
        "attention.key": ("einsum", 960, 8, 16, 2 * 40 * 12 * 16 * 16),
        "attention.value": ("einsum", 960, 8, 16, 2 * 40 * 12 * 16 * 16),
        "attention.attention_output": ("einsum", 480, 16, 16, 2 * 40 * 12 * 16 * 16),
        "head": ("linear", 40, 4, 16, 2 * 40 * 4 * 16),
    },
    "subclassed": {
        "shared": ("linear", 8, 16, 16, 2 * (2 * 8 * 16 * 16)),  # called twice
        "block_0.up": ("linear", 8, 32, 16, 2 * 8 * 32 * 16),
        "block_1.down": ("linear", 8, 16, 32, 2 * 8 * 32 * 16),
        ":matmul": ("matmul", 8, 16, 16, 2 * 8 * 16 * 16),
    },
    "recurrent": {"steps.each": ("linear", 8, 6, 8, 6 * 2 * 8 * 6 * 8), "head": ("linear", 8, 1, 4, 2 * 8 * 4)},
}
#: What is computed from the results of which products.
SOURCES = {
    ("sequential_digits", "hidden"): {"conv"},
    ("sequential_digits", "logits"): {"hidden"},
    ("subclassed", "block_0:add"): {"block_0.down", "shared"},
    ("functional_batchnorm", "sum:add"): {"left", "right"},
    ("functional_batchnorm", "left"): set(),  # behind a normalisation
    ("large_outputs", "large"): {"first"},
    ("large_outputs", "last"): set(),
    ("recurrent", "head"): {"steps.each"},
}
Zoo = Mapping[str, Shown]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(name)
    return name


@pytest.fixture(scope="module")
def zoo(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    names = (*EVERYWHERE, f"{LOOPS[backend]}+", *FURTHER[backend])
    return run_zoo(backend, tmp_path_factory.mktemp(backend), names)


def recorded(zoo: Zoo) -> dict[str, Recording]:
    return {name: shown.recording for name, shown in zoo.items() if shown.recording is not None}


def test_every_script_trains_to_its_end(zoo: Zoo) -> None:
    failures = {name: shown.failure for name, shown in zoo.items() if shown.failure and name != "never_trains"}
    assert not failures
    steps = {name: recording.steps for name, recording in recorded(zoo).items() if name in STEPS}
    assert steps == {name: STEPS[name] for name in steps}
    assert all(math.isfinite(loss) for recording in recorded(zoo).values() for loss in recording.losses)


def test_recording_says_what_it_is_of(backend: str, zoo: Zoo) -> None:
    for recording in recorded(zoo).values():
        assert (recording.framework, recording.backend, recording.device) == ("keras", backend, "cpu")
        assert {"keras", "numpy", backend} <= set(recording.versions)
        assert all(recording.versions.values())
    digits = recorded(zoo)["sequential_digits"]
    assert (digits.parameters, digits.parameter_dtype, digits.optimizers) == (4538, "float32", ("Adam",))


def test_losses_are_those_of_the_script_alone(backend: str, zoo: Zoo) -> None:
    for name, shown in zoo.items():
        if not shown.alone or shown.recording is None:
            continue
        losses, alone = list(shown.recording.losses), shown.alone
        if name == "torch_loop":  # one optimizer takes over from another: their first steps are one iteration
            alone = [*alone[:3], alone[3] + alone[4], alone[5]]
        if backend == "torch" or name in ("sequential_digits", "jax_loop"):
            assert losses == alone, name
        else:  # what is looked at is not fused, and not compiled by XLA on TensorFlow: other roundings
            assert losses == pytest.approx(alone, rel=3e-6), name


def test_products_are_the_same_on_every_backend(zoo: Zoo) -> None:
    for name, recording in recorded(zoo).items():
        found = {s.path: (s.kind, s.m, s.n, s.k, s.flops) for s in recording.matrix_sites}
        wanted = PRODUCTS.get(name, {})
        assert {path: found.get(path) for path in wanted} == wanted, name


def test_own_products_name_their_weights_and_bias(zoo: Zoo) -> None:
    sites = {s.path: s for s in recorded(zoo)["sequential_digits"].sites}
    assert sites["conv"].weights == ("conv.bias", "conv.kernel")
    assert sites["logits"].weights == ("logits.bias", "logits.kernel")
    assert sites[":cross_entropy"].kind == "cross_entropy"


def test_values_between_products_name_their_sources(zoo: Zoo) -> None:
    for (name, path), wanted in SOURCES.items():
        if name in recorded(zoo):
            sites = {s.path: set(s.sources) for s in recorded(zoo)[name].sites}
            assert sites[path] == wanted, (name, path)


def test_every_role_has_values_and_amax_is_exact(zoo: Zoo) -> None:
    recording = recorded(zoo)["sequential_digits"]
    pixels = np.random.default_rng(0).random((64, 8, 8, 1), dtype="float32")
    assert recording.summaries["conv", "input"].amax == float(pixels.max())
    assert recording.summaries["conv", "input"].elements == 6 * pixels.size
    for parameter in ("conv.kernel", "hidden.bias", "logits.kernel"):
        for role in ("weight", "weight_grad", "update"):
            assert recording.summaries[parameter, role].amax > 0
    for site in ("conv", "hidden", "logits"):
        assert recording.summaries[site, "grad_output"].elements == recording.summaries[site, "output"].elements
    assert {stall.parameter for stall in recording.stalls} >= {"conv.kernel", "hidden.kernel"}


def test_update_is_what_the_optimizer_makes_of_the_unscaled_gradient(zoo: Zoo) -> None:
    recording = recorded(zoo)["mixed_layers"]  # SGD, in a wrapper that scales
    for parameter in ("first.kernel", "out.kernel"):
        gradient = recording.summaries[parameter, "weight_grad"].amax
        assert recording.summaries[parameter, "update"].amax == pytest.approx(0.01 * gradient, rel=1e-2)


def test_what_the_script_asks_for_is_found_and_trained_in_float32(zoo: Zoo) -> None:
    found: dict[str, Any] = {name: [(k, d) for k, _, d in r.found] for name, r in recorded(zoo).items()}
    assert set(found["mixed_layers"]) == {
        ("found_dtype_policy", "'mixed_bfloat16'"),
        ("found_dtype_policy", "'mixed_float16'"),
        ("found_low_precision_weights", "bfloat16"),
        ("found_grad_scaler", "LossScaleOptimizer"),
    }
    assert all(where.split(":")[0].endswith("mixed_layers.py") for _, where, _ in recorded(zoo)["mixed_layers"].found)
    assert found["sequential_digits"] == []
    if "mixed_global" in found:
        assert found["mixed_global"] == [("found_dtype_policy", "set_dtype_policy('mixed_float16')")]


def test_planner_accepts_float16_for_a_normal_net_and_makes_an_island_of_large_outputs(zoo: Zoo) -> None:
    t4 = get_device("nvidia-t4")
    normal = judge("fp16-mixed", recorded(zoo)["sequential_digits"], t4)
    assert (normal.status, normal.islands) == ("accepted", ())
    assert normal.loss_scale is not None
    assert normal.loss_scale.initial > 1
    large = judge("fp16-mixed", recorded(zoo)["large_outputs"], t4)
    assert [island.module for island in large.islands] == ["large"]
    assert large.islands[0].reason.code == "forward_overflow"


def test_recurrent_layers_are_seen_by_their_cells_or_as_one_operator(backend: str, zoo: Zoo) -> None:
    if "recurrent" not in zoo:
        return  # scanned like TensorFlow's, and slow to compile
    kinds = {s.path: s.kind for s in recorded(zoo)["recurrent"].matrix_sites}
    if backend == "torch":
        assert (kinds["lstm"], kinds["both.forward_gru"]) == ("lstm", "gru")
    else:
        assert (kinds["lstm.lstm_cell"], kinds["lstm.lstm_cell:matmul#2"]) == ("linear", "matmul")


def test_script_without_a_step_is_told_so(zoo: Zoo) -> None:
    if "never_trains" in zoo:
        assert "sequential) but took no training step" in zoo["never_trains"].failure

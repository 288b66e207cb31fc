# SPDX-License-Identifier: Apache-2.0
"""Which linear layers train in float8, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from floatwise.errors import BadInputError
from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.float8_eligible import LEFT_OUT
from floatwise.rehearse.float8_filters import inner_linears, large_linears


class Adapter(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class Renamed(nn.Linear):
    pass


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight


def shifted_forward() -> nn.Linear:
    layer = nn.Linear(32, 32)
    layer.forward = lambda input: input  # type: ignore[method-assign]
    return layer


#: The layer, and why it is left out: code, data and the sentence.
CASES: list[tuple[str, Callable[[], nn.Module], tuple[str, dict[str, Any], str] | None]] = [
    ("plain", lambda: nn.Linear(32, 64), None),
    ("subclass without forward", lambda: Renamed(32, 32), None),
    ("bfloat16", lambda: nn.Linear(32, 32, dtype=torch.bfloat16), None),
    (
        "inputs",
        lambda: nn.Linear(24, 32),
        (
            "dimensions",
            {"inputs": 24, "outputs": 32, "multiple": 16},
            "24 inputs and 32 outputs: float8 products take multiples of 16",
        ),
    ),
    (
        "outputs",
        lambda: nn.Linear(32, 10),
        (
            "dimensions",
            {"inputs": 32, "outputs": 10, "multiple": 16},
            "32 inputs and 10 outputs: float8 products take multiples of 16",
        ),
    ),
    (
        "own forward",
        lambda: Adapter(32, 32),
        ("own_forward", {"class_name": "Adapter"}, "Adapter computes in a forward of its own"),
    ),
    (
        "replaced forward",
        shifted_forward,
        ("own_forward", {"class_name": "Linear"}, "Linear computes in a forward of its own"),
    ),
    (
        "float64",
        lambda: nn.Linear(32, 32, dtype=torch.float64),
        ("dtype", {"format": "float64"}, "its weight is stored in float64"),
    ),
    ("lazy", lambda: nn.LazyLinear(32), ("lazy", {}, "it has no weight before its first call")),
    (
        "computed",
        lambda: parametrizations.weight_norm(nn.Linear(32, 32)),
        ("computed_weight", {}, "its weight is computed from other parameters"),
    ),
]


@pytest.mark.parametrize(("make", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_layer_is_converted_or_the_reason_is_given(
    make: Callable[[], nn.Module], expected: tuple[str, dict[str, Any], str] | None
) -> None:
    with Float8Linears(nn.Sequential(make()), "tensorwise") as linears:
        pass
    if expected is None:
        assert (linears.converted, linears.left_out) == (("0",), ())
    else:
        assert linears.converted == ()
        assert [(o.code, dict(o.data), str(o)) for o in linears.left_out] == [expected]


def test_blocks_take_multiples_of_32() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48))
    assert Float8Linears(model, "mx").converted == ("0",)


def test_attention_does_not_call_its_output_layer() -> None:
    linears = Float8Linears(nn.TransformerEncoderLayer(32, 2, 64), "tensorwise")
    assert linears.converted == ("linear1", "linear2")
    assert [str(o) for o in linears.left_out] == ["attention uses its weight without calling it"]


def test_tied_weights_are_left_out_and_say_with_what() -> None:
    with Float8Linears(Tied(), "tensorwise") as linears:
        assert linears.converted == ("body",)
    assert [(o.path, str(o)) for o in linears.left_out] == [("head", "its weight is also that of embedding")]


def test_a_layer_used_twice_is_converted_once() -> None:
    layer = nn.Linear(32, 32)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    with Float8Linears(model, "tensorwise") as linears:
        model(torch.randn(16, 32))
    assert linears.converted == ("0",)
    assert linears.counts()["0", "input"].casts == 2


def test_what_is_converted_already_is_passed_over() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    with Float8Linears(model, "tensorwise") as outer:
        with Float8Linears(model, "rowwise") as inner:
            assert (inner.converted, inner.left_out) == ((), ())
        model(torch.randn(16, 32))
    assert outer.counts()["0", "input"].casts == 1


def test_only_linear_layers_count() -> None:
    linears = Float8Linears(nn.Sequential(nn.Conv2d(16, 16, 1), nn.Embedding(32, 32), nn.LayerNorm(32)), "tensorwise")
    assert (linears.converted, linears.left_out) == ((), ())


def test_torchaos_filters_can_be_used() -> None:
    asked: list[str] = []

    def without_first(module: nn.Module, path: str) -> bool:
        asked.append(path)
        return path != "0"

    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 5))
    linears = Float8Linears(model, "tensorwise", module_filter_fn=without_first)
    assert asked == ["0", "2"]
    assert linears.converted == ("2",)
    assert [o.code for o in linears.left_out] == ["filter", "dimensions"]


def test_accelerates_filter_leaves_out_both_ends() -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    assert Float8Linears(model, "rowwise", module_filter_fn=inner_linears(model)).converted == ("1", "2")


@pytest.mark.parametrize(
    ("scaling", "inputs", "outputs", "large"),
    [
        ("tensorwise", 4096, 1024, False),
        ("tensorwise", 4112, 1024, True),
        ("tensorwise", 4096, 1040, True),
        ("rowwise", 8192, 2048, False),
        ("rowwise", 1024, 8192, False),
        ("rowwise", 2048, 4096, False),
        ("rowwise", 2064, 4096, True),
        ("rowwise", 1040, 4112, True),
    ],
)
def test_torchaos_automatic_filter_takes_what_is_large(scaling: str, inputs: int, outputs: int, large: bool) -> None:
    layer = nn.Linear(inputs, outputs, device="meta")
    assert large_linears(scaling)(layer, "blocks.0.up") is large
    assert large_linears(scaling, without=["up"])(layer, "blocks.0.up") is False


def test_there_are_no_measurements_of_other_scalings() -> None:
    with pytest.raises(BadInputError, match="'tensorwise' and 'rowwise' only"):
        large_linears("mx")


def test_every_sentence_is_in_both_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dict.fromkeys(("format", "inputs", "outputs", "multiple", "other", "class_name"), "X")
    for text in LEFT_OUT.values():
        assert text.en.format(**data)
        assert text.zh.format(**data)
        assert text.en.count("{") == text.zh.count("{")
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    (only,) = Float8Linears(nn.Linear(32, 10), "tensorwise").left_out
    assert str(only) == "输入 32 维、输出 10 维：float8 矩阵乘要求维度为 16 的倍数"


def test_all_of_it_can_be_written_as_json() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 10))
    with Float8Linears(model, "tensorwise") as linears:
        model(torch.randn(20, 32)).sum().backward()
    data = json.loads(json.dumps(linears.to_json()))
    assert data["converted"] == ["0"]
    assert data["left_out"][0] == {
        "path": "1",
        "code": "dimensions",
        "data": {"inputs": 32, "outputs": 10, "multiple": 16},
    }
    assert data["uneven_rows"] == {"0": 20}
    assert [(row["path"], row["role"], row["casts"]) for row in data["counts"]] == [
        ("0", "input", 1),
        ("0", "weight", 1),
        ("0", "grad_output", 1),
    ]

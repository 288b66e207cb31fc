# SPDX-License-Identifier: Apache-2.0
"""Dtypes and values, rehearsed and real: agreement is seen, and so is a planted disagreement."""

from __future__ import annotations

import pytest
import torch
from benchmarks.gpu import operators, products, structures
from benchmarks.gpu.dtypes import Seen, compare
from benchmarks.gpu.models import example, from_transformers
from benchmarks.gpu.operator_cases import LISTED, UNLISTED, cases, operator
from benchmarks.gpu.part import Part
from benchmarks.gpu.sides import FakeCudaSide, Rehearsal
from tests.benchmarks.gpu_events import Found

from floatwise.torch import cuda_policy
from floatwise.torch.cuda_lists import FLOAT32, FLOAT32_APPEND_DTYPE, FLOAT32_SET_DTYPE, LOWER, WIDEST

FLOAT16 = torch.float16


def test_every_name_of_the_lists_has_a_call() -> None:
    assert {rule: set(table) for rule, table in LISTED.items()} == {
        "lower": set(LOWER),
        "float32": {*FLOAT32, *FLOAT32_SET_DTYPE, *FLOAT32_APPEND_DTYPE},
        "widest": set(WIDEST),
    }


def test_every_case_is_an_operator_with_the_inputs_of_its_rule() -> None:
    found = list(cases(FLOAT16))
    assert {case.name for case in found} >= set(UNLISTED)
    assert all(operator(case.name) is not None for case in found)
    given = {case.rule: {a.dtype for a in case.arguments if isinstance(a, torch.Tensor)} for case in found}
    assert given["lower"] == {torch.float32}
    mixed = [case for case in found if case.name == "addcmul"]
    assert [case.expected for case in mixed] == [torch.float32, FLOAT16]
    assert [a.dtype for a in mixed[0].arguments] == [FLOAT16, torch.float32, torch.float32]


def of_lists(part: Part) -> None:
    operators.compare_lists(part, Rehearsal(), FakeCudaSide(), FLOAT16)


def test_the_rehearsal_has_the_dtypes_of_cudas_own_autocast() -> None:
    found = Found(of_lists)
    assert not found.disagreements
    rows = {row["what"]: row for row in found.rows}
    row = rows["operators of CUDA's lists, and beside them"]
    assert row["agreeing"] == row["total"] >= 140
    assert row["real"] == "CUDA's autocast on fake tensors"


@pytest.mark.parametrize(
    ("table", "name", "detail"),
    [
        ("FLOAT32", "exp", "exp of float16: rehearsed float16, real float32"),
        ("FLOAT32_SET_DTYPE", "cumsum", "cumsum of float16: rehearsed float16, real float32"),
        ("LOWER", "mv", "mv of float32: rehearsed float32, real float16"),
        ("WIDEST", "dot", "dot of float16, float32: rehearsed RuntimeError"),
    ],
)
def test_a_planted_disagreement_is_reported(
    table: str, name: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_policy, table, tuple(n for n in getattr(cuda_policy, table) if n != name))
    found = Found(of_lists)
    assert list(found.disagreements) == ["dtypes, operators of CUDA's lists, and beside them, float16"]
    assert detail in next(iter(found.disagreements.values()))


def test_all_of_it_agrees_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "from_transformers", list)
    monkeypatch.setattr(operators, "DTYPES", (FLOAT16,))
    found = Found(operators.run)
    assert not found.disagreements
    assert set(found.left_out) >= {"BERT and T5", "lstm"}
    compared = {row["what"] for row in found.rows}
    assert compared >= {*structures.STRUCTURES, "text_gpt, gradients", "digits_cnn, operators", "values of attention"}
    assert all(row["total"] >= 4 for row in found.rows if "total" in row)


def test_products_that_are_computed_otherwise_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {"mm": products.products("tiny")["mm"]}
    monkeypatch.setattr(operators, "products", lambda size: some)

    class Coarse(Rehearsal):
        """Rounds operands to three bits."""

        def place(self, values):  # type: ignore[no-untyped-def]
            return [v.to(torch.float8_e4m3fn).to(v.dtype) for v in super().place(values)]

    def compared(part: Part) -> None:
        operators.compare_values(part, Coarse(), Rehearsal(), FLOAT16)

    found = Found(compared)
    assert list(found.disagreements) == ["values, mm, float16"]
    assert "epsilons apart, 4 allowed" in found.disagreements["values, mm, float16"]


@pytest.mark.parametrize(
    ("rehearsed", "real", "agreeing", "disagreements", "only"),
    [
        ("mm:h softmax:s", "mm:h softmax:s", 2, [], ("", "")),
        ("mm:h softmax:h", "mm:h softmax:s", 1, ["rehearsed softmax → h, real softmax → s"], ("", "")),
        ("mm:h attention:h mm:h", "mm:h bmm:h exp:s bmm:h mm:h", 2, [], ("attention", "bmm exp bmm")),
        ("mul:s mm:h", "mul:h mul:s mm:h", 2, [], ("", "mul")),
        ("", "mm:h", 0, [], ("", "mm")),
    ],
)
def test_records_are_aligned(
    rehearsed: str, real: str, agreeing: int, disagreements: list[str], only: tuple[str, str]
) -> None:
    records = [
        [Seen(name, (dtype,)) for name, _, dtype in (call.partition(":") for call in text.split())]
        for text in (rehearsed, real)
    ]
    found = compare(*records)
    assert (found.agreeing, found.disagreements) == (agreeing, disagreements)
    assert (" ".join(found.only_rehearsed), " ".join(found.only_real)) == only


def test_the_examples_load_where_their_data_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = __import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in ("sklearn", "transformers") else real(name)
    )
    example.cache_clear()
    try:
        assert example("digits_cnn").Net().classifier is not None
        assert from_transformers() == []
    finally:
        example.cache_clear()

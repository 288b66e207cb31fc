# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest

from floatwise.errors import UnknownNameError
from floatwise.formats import BLOCK_FORMATS, FORMATS, find_format, format_facts
from floatwise.language import Text

ALL = [*FORMATS, *BLOCK_FORMATS]
CHINESE = re.compile("[\u4e00-\u9fff]")


def facts_in(language: str, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("FLOATWISE_LANG", language)
    return {str(label): value for label, value in format_facts(name)}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_row_has_a_page(name: str, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_in(language, name, monkeypatch)
    assert len(facts) == len(format_facts(name)), "a label occurs twice"
    assert all(facts.values())
    if language == "en":
        assert not any(CHINESE.search(text) for pair in facts.items() for text in pair)


@pytest.mark.parametrize("name", ALL)
def test_every_row_says_what_it_is_good_for(name: str) -> None:
    row = find_format(name)
    texts: list[Text] = [row.use, row.pitfalls, *(label for label, _ in format_facts(name))]
    for text in texts:
        assert text.en
        assert not CHINESE.search(text.en)
        assert CHINESE.search(text.zh) or text.zh == "NaN"


@pytest.mark.parametrize(
    ("name", "label", "value"),
    [
        ("bfloat16", "bits", "16 (1 sign, 8 exponent, 7 mantissa)"),
        ("float16", "largest value", "65504"),
        ("float16", "smallest subnormal", "2^-24 (5.960464e-08)"),
        ("fp16", "consecutive integers up to", "2^11 (2048)"),
        ("float16", "rounds to zero", "|x| <= 2^-25 (2.980232e-08)"),
        ("float16", "overflows", "|x| >= 65520"),
        ("float8_e4m3fn", "overflows", "|x| > 464"),
        ("float8_e4m3fn", "overflow becomes", "NaN"),
        ("float64", "overflows", "|x| >= 2^1024 - 2^970"),
        ("float64", "rounds to zero", "|x| <= 2^-1075"),
        ("float8_e8m0fnu", "smallest subnormal", "none, nor a zero"),
        ("float6_e2m3fn", "consecutive integers up to", "7"),
        ("nvfp4", "bits per element", "4.5"),
        ("mxint8", "largest element", "1.984375"),
        ("mxint8", "also called", "none"),
    ],
)
def test_values(name: str, label: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts_in("en", name, monkeypatch)[label] == value


def test_values_in_words_follow_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts_in("zh", "float6_e2m3fn", monkeypatch)["上溢结果"] == "最大值（饱和）"
    assert facts_in("zh", "bfloat16", monkeypatch)["位数"] == "16（符号 1，指数 8，尾数 7）"


def test_rows_are_accepted_as_they_are() -> None:
    assert format_facts(FORMATS["float16"]) == format_facts("half")
    assert format_facts(BLOCK_FORMATS["nvfp4"]) == format_facts("nvfp4")
    with pytest.raises(UnknownNameError):
        format_facts("float7")

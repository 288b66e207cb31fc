# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from floatwise.torch import cuda_lists

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"

LISTS: list[tuple[str, Iterable[str]]] = [
    ("AT_FORALL_LOWER_PRECISION_FP", cuda_lists.LOWER),
    ("AT_FORALL_FP32", cuda_lists.FLOAT32),
    ("AT_FORALL_FP32_SET_OPT_DTYPE", cuda_lists.FLOAT32_SET_DTYPE),
    ("AT_FORALL_PROMOTE", cuda_lists.WIDEST),
]


def in_header(macro: str) -> set[str]:
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", HEADER.read_text(encoding="utf-8"), re.DOTALL)
    assert body is not None, f"{macro} is gone from {HEADER}"
    return {name.replace(", ", ".") for name in re.findall(r"_\(([\w ,]+)\)", body[1])}


@pytest.mark.parametrize(("macro", "names"), LISTS, ids=[macro for macro, _ in LISTS])
def test_each_list_is_the_installed_torch_header(macro: str, names: Iterable[str]) -> None:
    assert in_header(macro) == set(names)


def test_appended_dtypes_are_the_header() -> None:
    text = HEADER.read_text(encoding="utf-8")
    body = text[text.index("#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE") :]
    assert set(re.findall(r'"(norm\.\w+)"', body)) == set(cuda_lists.FLOAT32_APPEND_DTYPE)


def test_no_name_is_listed_twice() -> None:
    names = [n for _, listed in LISTS for n in listed] + list(cuda_lists.FLOAT32_APPEND_DTYPE)
    assert len(names) == len(set(names))


def test_the_lists_are_all_that_cuda_registers() -> None:
    listed = {n for _, names in LISTS for n in names} | set(cuda_lists.FLOAT32_APPEND_DTYPE)
    apart = {cuda_lists.REFUSED, *cuda_lists.CUDNN}
    registered = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    if not torch.version.cuda:
        registered.add("aten::_cudnn_rnn")
    assert {f"aten::{n}" for n in listed | apart} == registered
    assert not listed & apart


def test_the_stated_release_is_the_one_compared() -> None:
    assert torch.__version__.partition("+")[0] == cuda_lists.TORCH_VERSION, (
        "a new torch: if the other tests of this file pass, only the version needs to be changed"
    )

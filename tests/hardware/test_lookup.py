# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from floatwise.errors import FloatwiseError, UnknownNameError
from floatwise.hardware import DEVICES, best_here, detect, get_device


@pytest.mark.parametrize("id", DEVICES)
def test_every_id_round_trips(id: str) -> None:
    assert get_device(id).id == id


def test_cpu_is_the_cpu_of_this_machine() -> None:
    assert get_device("cpu") is detect()[-1].device
    assert get_device(" CPU ").kind == "cpu"


@pytest.mark.parametrize("word", ["here", "local", "HERE"])
def test_here_is_the_best_device(word: str) -> None:
    assert get_device(word) is best_here().device


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown device 'RTX 3095'") as caught:
        get_device("RTX 3095")
    assert "nvidia-rtx-3090" in caught.value.nearest
    assert "nearest: nvidia-rtx-3090 (NVIDIA GeForce RTX 3090)" in str(caught.value)
    assert isinstance(caught.value, FloatwiseError)


def test_what_the_message_suggests_is_accepted() -> None:
    for wrong in ("RTX 3095", "MI300", "nvidia-t44", "TPU v9"):
        with pytest.raises(UnknownNameError) as caught:
            get_device(wrong)
        assert caught.value.nearest
        for suggestion in caught.value.nearest:
            assert get_device(suggestion).id == suggestion


@pytest.mark.parametrize("name", ["", "quantum annealer xyzzy"])
def test_names_like_nothing(name: str) -> None:
    with pytest.raises(UnknownNameError, match="such as amd-mi100"):
        get_device(name)

# SPDX-License-Identifier: Apache-2.0
"""Mixed precision asked for through trainers' settings, with the trainers themselves."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.frameworks import recognise_trainers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Some of what these packages load changes a process for good: that is done before a test looks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("accelerate", "lightning.pytorch", "lightning.fabric", "transformers.trainer"):
            importlib.import_module(name)


@pytest.fixture
def settings(tap: Tap, existing: ExistingPrecision) -> Iterator[list[str]]:
    """The trainers' settings that were found; trainers are recognised while a test runs."""
    found: list[str] = []
    tap.report = lambda what: found.append(what.detail)  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what trainers say about this machine
        recognise_trainers(existing)
        yield found


# -- transformers ---------------------------------------------------------------------------------------------------

TRANSFORMERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"bf16": False, "fp16": False}, []),
    ({"bf16": True}, ["bf16=True"]),
    ({"fp16": True}, ["fp16=True"]),
    ({"bf16": True, "bf16_full_eval": True}, ["bf16=True", "bf16_full_eval=True"]),
    ({"fp16_full_eval": True}, ["fp16_full_eval=True"]),
]
FLAGS = ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval")


@pytest.mark.parametrize("kind", ["TrainingArguments", "Seq2SeqTrainingArguments"])
@pytest.mark.parametrize(("asked", "found"), TRANSFORMERS)
def test_training_arguments(
    settings: list[str], tmp_path: Path, kind: str, asked: dict[str, Any], found: list[str]
) -> None:
    import transformers

    made = getattr(transformers, kind)(output_dir=str(tmp_path), use_cpu=True, report_to=[], **asked)
    assert settings == [f"{kind}({setting})" for setting in found]
    assert not any(getattr(made, flag) for flag in FLAGS)
    assert made.mixed_precision == "no"


def test_training_arguments_of_ones_own_from_the_command_line(settings: list[str], tmp_path: Path) -> None:
    import transformers

    @dataclasses.dataclass
    class Mine(transformers.TrainingArguments):
        extra: int = 3

    parser = transformers.HfArgumentParser(Mine)  # type: ignore[arg-type]
    (made,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--use_cpu", "--bf16", "--extra", "5"])
    assert (made.extra, made.bf16) == (5, False)
    assert settings == ["Mine(bf16=True)"]


# -- accelerate -----------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerator() -> Iterator[Callable[..., Any]]:
    """Makes Accelerators; the state they share is dropped after each."""
    import accelerate
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield lambda *args, **kwargs: accelerate.Accelerator(*args, cpu=True, **kwargs)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((), {}, []),
        ((), {"mixed_precision": "no"}, []),
        ((), {"mixed_precision": "bf16"}, ["Accelerator(mixed_precision='bf16')"]),
        ((), {"mixed_precision": "fp16"}, ["Accelerator(mixed_precision='fp16')"]),
        ((True, False, "bf16"), {}, ["Accelerator(mixed_precision='bf16')"]),
    ],
)
def test_accelerator(
    settings: list[str],
    accelerator: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    found: list[str],
) -> None:
    assert accelerator(*args, **kwargs).mixed_precision == "no"
    assert settings == found


def test_what_the_launcher_sets(
    settings: list[str], accelerator: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert accelerator().mixed_precision == "no"
    assert settings == ["Accelerator(mixed_precision='bf16')"]


# -- lightning ------------------------------------------------------------------------------------------------------

LIGHTNING = ["16-mixed", "bf16-mixed", "16-true", "bf16-true", 16, "bf16", "transformer-engine"]


def lightning(kind: str) -> Callable[..., Any]:
    import lightning.fabric
    import lightning.pytorch

    if kind == "Fabric":
        return lambda **kwargs: lightning.fabric.Fabric(accelerator="cpu", devices=1, **kwargs)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lambda **kwargs: lightning.pytorch.Trainer(accelerator="cpu", devices=1, **quiet, **kwargs)


def precision_of(made: Any) -> str:
    plugin = getattr(made, "_precision", None) or made.strategy.precision_plugin
    return str(plugin.precision)


@pytest.mark.parametrize("kind", ["Trainer", "Fabric"])
@pytest.mark.parametrize("asked", LIGHTNING)
def test_lightning(settings: list[str], kind: str, asked: str | int) -> None:
    assert precision_of(lightning(kind)(precision=asked)) == "32-true"
    assert settings == [f"{kind}(precision={asked!r})"]


@pytest.mark.parametrize("kind", ["Trainer", "Fabric"])
@pytest.mark.parametrize("asked", ["32-true", 32, "64-true", 64])
def test_lightning_without_mixed_precision(settings: list[str], kind: str, asked: str | int) -> None:
    assert precision_of(lightning(kind)(precision=asked)) == f"{str(asked)[:2]}-true"
    assert settings == []


def test_the_trainers_signature_can_still_be_read(settings: list[str]) -> None:
    lightning("Trainer")
    from lightning.pytorch import Trainer

    assert {"precision", "max_epochs"} <= inspect.signature(Trainer.__init__).parameters.keys()

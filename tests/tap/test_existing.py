# SPDX-License-Identifier: Apache-2.0
"""The script's own autocast regions, loss scalers and compilation, and what is reported of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from tests.tap.listening import Listener
from torch import Tensor, nn
from torch.amp import GradScaler, autocast
from torch.utils.checkpoint import checkpoint

from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision

Region = Callable[[], AbstractContextManager[object]]


@pytest.fixture(autouse=True)
def _script_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CUDA region on this machine, deprecated spellings
        yield


def product() -> Tensor:
    return torch.ones(2, 2) @ torch.ones(2, 2)


REGIONS: list[tuple[str, Region]] = [
    ("bfloat16", lambda: autocast("cpu")),
    ("bfloat16", lambda: autocast("cpu", torch.bfloat16)),
    ("float16", lambda: torch.autocast(device_type="cpu", dtype=torch.float16)),
    ("bfloat16", lambda: torch.autocast("cpu", torch.bfloat16, True, False)),
    ("bfloat16", lambda: torch.cpu.amp.autocast_mode.autocast()),
    ("float16", lambda: torch.cuda.amp.autocast()),
    ("bfloat16", lambda: torch.cuda.amp.autocast(True, torch.bfloat16)),
    ("float16", lambda: torch.autocast("cuda", dtype=torch.float16)),
]


@pytest.mark.parametrize(("dtype", "region"), REGIONS)
def test_a_region_is_found_and_does_nothing(
    existing: ExistingPrecision, heard: Listener, dtype: str, region: Region
) -> None:
    with region():
        assert product().dtype is torch.float32
        assert not torch.is_autocast_enabled("cpu")
    assert heard.of("found") == [("found_autocast", dtype)]


def test_so_is_a_decorator(existing: ExistingPrecision, heard: Listener) -> None:
    @torch.autocast("cpu", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
    def forward() -> Tensor:
        return product()

    assert forward().dtype is torch.float32
    assert heard.of("found") == [("found_autocast", "bfloat16")]


DISABLED: list[Region] = [
    lambda: autocast("cpu", enabled=False),
    lambda: autocast("cpu", torch.bfloat16, False),
    lambda: torch.cpu.amp.autocast_mode.autocast(enabled=False),
    lambda: torch.cuda.amp.autocast(False),
]


@pytest.mark.parametrize("region", DISABLED)
def test_a_disabled_region_is_the_scripts_own_island(
    existing: ExistingPrecision, heard: Listener, region: Region
) -> None:
    with region():
        product()
    assert heard.of("found") == []


def test_an_island_within_the_plans_region_stays(tap: Tap) -> None:
    ExistingPrecision(tap, compute_dtype=torch.bfloat16).install()
    torch.set_autocast_enabled("cpu", True)
    try:
        assert product().dtype is torch.bfloat16
        with autocast("cpu", enabled=False):
            assert product().dtype is torch.float32
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()


def test_under_a_plan_a_region_is_handed_to_it(tap: Tap, heard: Listener) -> None:
    ExistingPrecision(tap, compute_dtype=torch.bfloat16).install()
    with autocast("cpu", dtype=torch.float16):
        assert product().dtype is torch.float32, "the plan opens a region of its own"
    assert heard.names == ["found", "script_region_entered", "script_region_left"]


def test_each_line_is_reported_once(existing: ExistingPrecision, heard: Listener) -> None:
    for _ in range(3):
        with autocast("cpu"):
            pass
    with autocast("cpu"):
        pass
    assert len(heard.of("found")) == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_within_the_plans_region_is_not_the_scripts(tap: Tap, heard: Listener, reentrant: bool) -> None:
    ExistingPrecision(tap, compute_dtype=torch.bfloat16).install()
    block, x = nn.Linear(2, 2), torch.randn(2, 2, requires_grad=True)
    torch.set_autocast_enabled("cpu", True)
    loss = checkpoint(block, x, use_reentrant=reentrant).float().sum()
    torch.set_autocast_enabled("cpu", False)
    loss.backward()
    torch.clear_autocast_cache()
    assert heard.of("found") == []
    assert block.weight.grad is not None


SCALERS: list[Callable[[], GradScaler]] = [
    lambda: GradScaler("cpu"),
    lambda: GradScaler(),
    lambda: GradScaler("cpu", 1024.0, 2.0, 0.5, 100, True),
    lambda: torch.cuda.amp.GradScaler(),
    lambda: torch.cpu.amp.grad_scaler.GradScaler(init_scale=4.0),
]


@pytest.mark.parametrize("make", SCALERS)
def test_a_scaler_is_found_and_does_nothing(
    existing: ExistingPrecision, heard: Listener, make: Callable[[], GradScaler]
) -> None:
    scaler = make()
    assert heard.of("found") == [("found_grad_scaler", "GradScaler")]
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([weight], 100.0)
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0, 0.0]
    assert scaler.get_scale() == 1.0
    assert not scaler.is_enabled()
    scaler.load_state_dict(scaler.state_dict())


def test_settings_of_a_scaler_can_still_be_read(existing: ExistingPrecision) -> None:
    scaler = GradScaler("cpu", 1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=7)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (4.0, 0.25, 7)
    scaler.set_growth_interval(9)
    scaler.update(2.0)
    scaler.load_state_dict(
        {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 0}
    )


def test_a_checkpoint_still_gets_a_scalers_state(existing: ExistingPrecision) -> None:
    scaler = GradScaler("cpu", 1024.0, growth_interval=7)
    saved = scaler.state_dict()
    assert (saved["scale"], saved["growth_interval"]) == (1024.0, 7)
    scaler.load_state_dict({**saved, "scale": 8.0})
    assert scaler.state_dict()["scale"] == 8.0
    scaler.load_state_dict({})
    assert scaler.state_dict()["scale"] == 8.0
    assert GradScaler("cpu", enabled=False).state_dict() == {}


def test_under_a_plan_it_is_the_state_of_the_plans_scaler(existing: ExistingPrecision) -> None:
    plans = {"scale": 2.0, "growth_interval": 50, "skipped_steps": 3}
    loaded: list[dict[str, object]] = []
    existing.scaler_state, existing.load_scaler_state = (lambda: plans), loaded.append
    scaler = GradScaler("cpu", 1024.0, growth_factor=4.0)
    state = scaler.state_dict()
    assert (state["scale"], state["growth_interval"], state["growth_factor"]) == (2.0, 50, 4.0)
    assert "skipped_steps" not in state, "a plain GradScaler must be able to load it"
    scaler.load_state_dict(state)
    assert loaded == [state]
    GradScaler("cpu", enabled=True).load_state_dict(state)


@pytest.mark.parametrize(
    "make", [lambda: GradScaler("cpu", enabled=False), lambda: GradScaler("cpu", 1.0, 2.0, 0.5, 9, False)]
)
def test_a_disabled_scaler_is_no_finding(
    existing: ExistingPrecision, heard: Listener, make: Callable[[], GradScaler]
) -> None:
    assert not make().is_enabled()
    assert heard.of("found") == []


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_default_dtype(existing: ExistingPrecision, heard: Listener, low: torch.dtype) -> None:
    torch.set_default_dtype(low)
    assert torch.get_default_dtype() is torch.float32
    assert nn.Linear(2, 2).weight.dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    assert torch.ones(1).dtype is torch.float64
    torch.set_default_dtype(torch.float32)
    assert heard.of("found") == [("found_default_dtype", str(low).removeprefix("torch."))]


@pytest.mark.parametrize("kind", [torch.HalfTensor, "torch.BFloat16Tensor"])
def test_default_tensor_type(existing: ExistingPrecision, heard: Listener, kind: object) -> None:
    torch.set_default_tensor_type(kind)  # type: ignore[arg-type]
    assert torch.ones(1).dtype is torch.float32
    assert [found[0] for found in heard.of("found")] == ["found_default_dtype"]


def compiled_model() -> Callable[[Tensor], Tensor]:
    return torch.compile(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))


def compiled_in_place() -> Callable[[Tensor], Tensor]:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    model.compile()
    return model


def compiled_by_decorator() -> Callable[[Tensor], Tensor]:
    @torch.compile
    def double(x: Tensor) -> Tensor:
        assert not torch.compiler.is_compiling()
        return 2 * x

    return double


def compiled_by_decorator_with_options() -> Callable[[Tensor], Tensor]:
    @torch.compile(mode="max-autotune", dynamic=False)
    def double(x: Tensor) -> Tensor:
        assert not torch.compiler.is_compiling()
        return 2 * x

    return double


@pytest.mark.parametrize(
    "make", [compiled_model, compiled_in_place, compiled_by_decorator, compiled_by_decorator_with_options]
)
def test_what_is_compiled_runs_uncompiled(
    existing: ExistingPrecision, heard: Listener, make: Callable[[], Callable[[Tensor], Tensor]]
) -> None:
    assert make()(torch.ones(1, 2)).shape[0] == 1
    assert heard.of("found") == [("found_compile", "torch.compile")]


def test_the_compiled_model_is_still_inside_its_wrapper(existing: ExistingPrecision, heard: Listener) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    compiled = torch.compile(model)
    assert compiled._orig_mod is model  # type: ignore[attr-defined]
    compiled(torch.ones(1, 2))
    assert ("operator_called", "0", "linear") in heard.events


def test_findings_name_the_line(tap: Tap) -> None:
    lines: list[str] = []
    tap.report = lambda what: lines.append(what.where)  # type: ignore[method-assign]
    ExistingPrecision(tap).install()
    autocast("cpu")
    (where,) = lines
    path, _, number = where.rpartition(":")
    assert path.endswith("test_existing.py")
    with open(__file__, encoding="utf-8") as source:
        assert source.readlines()[int(number) - 1].strip() == 'autocast("cpu")'

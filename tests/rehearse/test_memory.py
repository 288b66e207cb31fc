# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from floatwise.errors import BadInputError
from floatwise.plan import recipe
from floatwise.rehearse.memory import predict_memory, record_memory
from floatwise.rehearse.memory_curve import MemoryRecord, Moment
from floatwise.rehearse.memory_prediction import KNOWN_ERROR, peak_memory
from floatwise.rehearse.memory_script import ScriptStep
from floatwise.rehearse.memory_states import Sharding, WeightCounts
from floatwise.tap.clock import IterationClock
from floatwise.tap.core import Tap

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory_prediction.py"


class _Net(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x).float().square().mean()
        return result


def _predict(model: nn.Module, name: str = "fp32", batch: int = 512, **more: Any) -> Any:
    return predict_memory(model, torch.empty(batch, 256), optim.Adam(model.parameters()), recipe(name), **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "bf16-master"])
@pytest.mark.parametrize("model", ["text_gpt", "digits_cnn", "translator", "perceptron"])
def test_predicted_peak_is_near_the_measured_one(model: str, name: str) -> None:
    command = [sys.executable, str(_BENCHMARK), "--compare", model, name]
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert row["peak_bytes"] == pytest.approx(row["measured_bytes"], rel=KNOWN_ERROR)


def test_kinds_add_up_to_the_peak_and_are_marked_as_predicted() -> None:
    prediction = _predict(_Net(), "bf16-mixed")
    values = prediction.to_json()
    assert values.pop("predicted") is True
    kinds = [size for key, size in values.items() if key.endswith("_bytes") and key != "peak_bytes"]
    assert sum(kinds) == prediction.peak_bytes
    # The second matrix: the backward pass needs it. The first one's input takes no gradient, and biases are not kept.
    assert prediction.casts_bytes == 2 * 256 * 256


def test_real_meta_and_fake_models_give_the_same() -> None:
    with torch.device("meta"):
        meta = _Net()
    with FakeTensorMode():
        fake = _Net()
    real = _Net()
    assert _predict(real) == _predict(meta) == _predict(fake)


def test_model_and_optimizer_stay_as_they_are() -> None:
    model = _Net()
    optimizer = optim.Adam(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predict_memory(model, torch.empty(4, 256), optimizer, recipe("bf16-master"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.dtype is torch.float32 and p.grad is None for p in model.parameters())
    assert not optimizer.state
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


def test_nothing_of_the_models_size_is_allocated() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2**17, 2**17), nn.Linear(2**17, 1))  # 64 GiB of weights
    prediction = predict_memory(
        model,
        torch.empty(1, 2**17, device="meta"),
        optim.SGD(model.parameters(), lr=0.1),
        recipe("fp32"),
        loss=lambda model, x: model(x).sum(),
    )
    assert prediction.peak_bytes > 2 * 4 * 2**34


def test_activations_agree_with_pytorchs_tracker() -> None:
    with FakeTensorMode():
        model, x = _Net(), torch.empty(2048, 256)
        optimizer = optim.Adam(model.parameters(), foreach=False)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, x)
        for _ in range(2):
            with tracker:
                model(x).backward()
                optimizer.step()
                optimizer.zero_grad()
            tracker.reset_mod_stats()
    (total,) = (device["Total"] for device in tracker.get_tracker_snapshot("peak").values())
    assert predict_memory(model, x, optimizer, recipe("fp32")).peak_bytes == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize(
    ("old_gradients", "peak", "phase"),
    [
        ("dropped", 40 + 1 + 90 + 20, "backward"),
        ("in_forward", 40 + 1 + 100 + 40, "forward"),
        ("kept", 40 + 1 + 100 + 40, "forward"),
    ],
)
def test_old_gradients_count_while_the_loop_keeps_them(old_gradients: Any, peak: int, phase: str) -> None:
    moments = (Moment("forward", 100, 0, 0), Moment("backward", 90, 0, 20))
    record = MemoryRecord(moments, 1, 0, slots=0, weights=WeightCounts(0, 10), old_gradients=old_gradients)
    prediction = peak_memory(record, recipe("fp32"))
    assert (prediction.peak_bytes, prediction.phase) == (peak, phase)


def test_islands_keep_float32_activations() -> None:
    mixed = recipe("bf16-mixed")
    island = {
        "module": "layers.*",
        "policy": dict.fromkeys(("param_dtype", "compute_dtype", "output_dtype"), "float32"),
    }
    model = _Net()
    sizes = [
        predict_memory(model, torch.empty(2048, 256), optim.Adam(model.parameters()), plan).peak_bytes
        for plan in (mixed, recipe("bf16-mixed", modules=[island]), recipe("fp32"))
    ]
    assert sizes[0] < sizes[1] == pytest.approx(sizes[2], rel=0.02)


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.b(self.a(x)).float().sum()
            return result

    assert _predict(Tied(), "bf16-master", batch=1).weights_bytes == 2 * 256 * 256


def test_a_record_of_one_process_predicts_any_sharding() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    optimizer = optim.Adam(model.parameters())
    record = record_memory(
        model, torch.empty(8, 256), optimizer, recipe("bf16-mixed"), loss=lambda m, x: m(x).float().sum()
    )
    read = MemoryRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert read == record
    one = peak_memory(read, recipe("bf16-mixed"))
    four = peak_memory(read, recipe("bf16-mixed"), sharding=Sharding("fsdp", 4))
    assert four.optimizer_bytes == one.optimizer_bytes / 4
    assert four.weights_bytes == one.weights_bytes / 4


def test_an_optimizer_of_another_library_is_measured() -> None:
    class Two(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                self.state[p].setdefault("a", torch.zeros_like(p))
                self.state[p].setdefault("b", torch.zeros_like(p))

    model = _Net()
    ours = predict_memory(model, torch.empty(8, 256), Two(model.parameters()), recipe("fp32"))
    adams = predict_memory(model, torch.empty(8, 256), optim.Adam(model.parameters()), recipe("fp32"))
    assert ours.optimizer_bytes == adams.optimizer_bytes


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(256, 256), "expected its loss"),
        (type("Looks", (_Net,), {"forward": lambda self, x: self.layers(x).sum() * float(x.sum())})(), "looks at"),
    ],
)
def test_what_cannot_be_predicted_is_said(model: nn.Module, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        _predict(model)


class _OwnMode(TorchDispatchMode):
    """What a script may open around a step, as `torch.utils.flop_counter.FlopCounterMode`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("own_mode", [False, True])
@pytest.mark.parametrize("zero_grad", ["first", "between", "kept"])
def test_a_script_that_knows_nothing_gives_the_same_record(zero_grad: str, own_mode: bool) -> None:
    model = _Net()
    optimizer = optim.Adam(model.parameters())
    steps = ScriptStep(recipe("fp32"))
    clock = IterationClock(lambda index, loss: steps.iteration_ended(index))
    with Tap([steps, clock]), steps.mode:
        for _ in range(3):
            with _OwnMode() if own_mode else nullcontext():  # type: ignore[no-untyped-call]
                x = torch.randn(512, 256)
                if zero_grad == "first":
                    optimizer.zero_grad()
                loss = model(x)
                if zero_grad != "first":
                    optimizer.zero_grad(set_to_none=zero_grad == "between")
                loss.backward()
                optimizer.step()
    assert steps.record is not None
    expected = {"first": "dropped", "between": "in_forward", "kept": "kept"}[zero_grad]
    assert steps.record.memory.old_gradients == expected
    seen = peak_memory(steps.record.memory, recipe("fp32"))
    told = predict_memory(model, x, optimizer, recipe("fp32"), old_gradients=expected)
    assert seen.peak_bytes == pytest.approx(told.peak_bytes, rel=0.02)
    products = [o for o in steps.record.operators if o.matrix]
    assert sum(o.calls for o in products) == 2 + 3  # nothing is needed of the gradient of the input

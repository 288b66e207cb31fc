# SPDX-License-Identifier: Apache-2.0
"""Module calls: the order of events, what observers may change, and where nothing may be heard."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tap.listening import Listener
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from floatwise.tap import Observer, attach
from floatwise.tap.core import Tap


def small_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("not today")


def test_the_events_of_a_training_step_in_order(tap: Tap, heard: Listener) -> None:
    model, criterion = small_model(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion(model(torch.randn(3, 4)), torch.zeros(3, 1)).backward()
    optimizer.step()
    assert heard.events == [
        ("root_entered", "Sequential"),
        ("operator_called", "0", "linear"),
        ("module_called", "0"),
        ("module_called", "1"),
        ("operator_called", "2", "linear"),
        ("module_called", "2"),
        ("module_called", ""),
        ("root_left", "Sequential"),
        ("root_entered", "MSELoss"),
        ("operator_called", "MSELoss:mse_loss", "mse_loss"),
        ("module_called", "MSELoss"),
        ("root_left", "MSELoss"),
        ("backward_starts", 1),
        ("backward_ended", 1),
        ("step_starts", "SGD"),
        ("step_ended", "SGD"),
    ]


def test_who_does_not_inspect_values_hears_of_outermost_modules_only() -> None:
    heard = Listener(inspects_values=False)
    with attach(heard):
        small_model()(torch.randn(2, 4))
    assert heard.names == ["root_entered", "root_left"]


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_is_no_forward_to_inspect(tap: Tap, heard: Listener, guard: Callable[[], Any]) -> None:
    with guard():
        small_model()(torch.randn(2, 4))
    assert heard.names == ["root_entered", "root_left"]


def test_a_module_that_raises(tap: Tap, heard: Listener) -> None:
    with pytest.raises(RuntimeError, match="not today"):
        nn.Sequential(nn.Linear(4, 4), Failing())(torch.randn(2, 4))
    assert heard.names[-1] == "root_failed"
    assert "root_left" not in heard.names
    heard.events.clear()
    small_model()(torch.randn(2, 4))
    assert heard.events[0] == ("root_entered", "Sequential"), "the failed call is off the stack"


class Changing(Observer):
    """Doubles the input and adds one to the output of every outermost module."""

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(2 * a for a in args), {k: 2 * v for k, v in kwargs.items()}

    @override
    def root_left(self, root: nn.Module, output: Any) -> Any:
        return output + 1


def test_observers_may_change_what_goes_in_and_out() -> None:
    x = torch.randn(2, 4)
    with attach(Changing(), Changing()):
        assert torch.equal(nn.Identity()(x), 4 * x + 2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_no_outermost_call(tap: Tap, heard: Listener, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = checkpoint(self.block, x, use_reentrant=reentrant)
            return output

    Checkpointed()(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert heard.of("root_entered") == [("Checkpointed",)]
    assert heard.of("operator_called").count(("block", "linear")) >= 1


def test_keyword_arguments_and_any_output_pass_through(tap: Tap) -> None:
    class Keyed(nn.Module):
        def forward(self, *, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
            return {"y": x * scale, "more": [x]}

    output = Keyed()(x=torch.ones(2), scale=3.0)
    assert output["y"].tolist() == [3.0, 3.0]
    assert len(output["more"]) == 1


def test_each_thread_has_modules_of_its_own(tap: Tap, heard: Listener) -> None:
    model = small_model()
    model(torch.randn(2, 4))  # names it
    heard.events.clear()
    inside = threading.Barrier(2)

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.wait(10)
            return model(x)  # type: ignore[no-any-return]

    wrapper = Waiting()
    threads = [threading.Thread(target=wrapper, args=(torch.randn(2, 4),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard.of("root_entered") == [("Waiting",)] * 2
    assert heard.of("root_left") == [("Waiting",)] * 2


def _silent_in_a_fork(tap: Tap, heard: Listener) -> int:
    """Trains a step in a forked process, as a DataLoader worker might; returns how many events that told."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        os.write(write, str(len(heard.events)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        events = int(told.read())
    os.waitpid(child, 0)
    return events


def test_a_forked_worker_tells_nothing(tap: Tap, heard: Listener) -> None:
    assert not tap.is_elsewhere()
    assert _silent_in_a_fork(tap, heard) == 0


def _trace(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.trace(model, x)


def _export(model: nn.Module, x: Tensor) -> Any:
    return torch.export.export(model, (x,)).module()


def _symbolic(model: nn.Module, x: Tensor) -> Any:
    return torch.fx.symbolic_trace(model)


def _script(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.script(model)


@pytest.mark.parametrize("capture", [_trace, _export, _symbolic, _script])
@pytest.mark.filterwarnings("ignore")
def test_capturing_a_graph_works_and_captures_nothing_of_ours(
    tap: Tap, capture: Callable[[nn.Module, Tensor], Any]
) -> None:
    model, x = small_model(), torch.randn(3, 4)
    captured = capture(model, x)
    assert torch.allclose(captured(x), model(x))
    assert "aminmax" not in str(getattr(captured, "graph", ""))


def _per_sample_gradients(model: nn.Module, x: Tensor) -> Sequence[int]:
    parameters: dict[str, Tensor] = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(model, values, (row[None],))
        return output.pow(2).mean()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    return tuple(gradients["0.weight"].shape)


def test_transformed_functions_are_not_inspected(tap: Tap, heard: Listener) -> None:
    assert _per_sample_gradients(small_model(), torch.randn(5, 4)) == (5, 8, 4)
    assert {"module_called", "operator_called"}.isdisjoint(heard.names)


def test_fake_tensors_are_not_inspected(tap: Tap, heard: Listener) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        small_model()(torch.randn(3, 4)).sum().backward()
    assert {"module_called", "operator_called"}.isdisjoint(heard.names)


def test_outside_of_the_tap_nothing_is_heard(heard: Listener) -> None:
    with attach(heard):
        pass
    small_model()(torch.randn(2, 4)).sum().backward()
    F.linear(torch.randn(2, 4), torch.randn(3, 4))
    assert heard.events == []

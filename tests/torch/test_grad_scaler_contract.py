# SPDX-License-Identifier: Apache-2.0
"""What PyTorch tests of its grad scaler (test_torch.py, `test_grad_scaling_*`), on the CPU, for it and for ours alike.

Growth by headroom must not show here: the gradients are small, so the scale grows whenever `GradScaler`'s does.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.grad_scaler_parts import (
    SCALERS,
    batches,
    loss_of,
    model,
    optimizer_of,
)
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

Make = Callable[..., GradScaler]

INF, NAN = math.inf, math.nan


@pytest.fixture(params=SCALERS)
def make(request: pytest.FixtureRequest) -> Make:
    return SCALERS[request.param]


@pytest.fixture
def scaler(make: Make) -> GradScaler:
    """A scaler that grows after every good update."""
    return make(init_scale=128.0, growth_factor=2.0, growth_interval=1)


class TestScale:
    def test_containers_keep_their_kinds(self, scaler: GradScaler) -> None:
        one = torch.ones(())
        given: Any = [one, (one, [one])]
        nested: Any = scaler.scale(given)
        assert nested == [128.0, (128.0, [128.0])]
        assert isinstance(nested[1], tuple)
        assert [t.item() for t in scaler.scale(iter([one, one]))] == [128.0, 128.0]

    def test_what_is_no_tensor_is_refused(self, scaler: GradScaler) -> None:
        with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
            scaler.scale([1.0])  # type: ignore[list-item]

    def test_the_scale_comes_into_being_where_the_loss_is(self, scaler: GradScaler) -> None:
        assert scaler._get_scale_async() is None
        assert scaler.get_scale() == 128.0
        scaler.scale(torch.ones(()))
        scale = scaler._get_scale_async()
        assert scale is not None
        assert (scale.dtype, scale.shape) == (torch.float32, ())


class TestUnscale:
    DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

    @staticmethod
    def gradients(bad: int) -> list[Tensor]:
        """Gradients of 4 of every dtype, some of them strided; number `bad` has an infinite value."""
        made = [torch.full((4, 4), 4.0, dtype=dtype) for dtype in TestUnscale.DTYPES for _ in range(2)]
        made[3], made[5] = made[3].t(), torch.full((4, 8), 4.0)[:, ::2]
        if bad >= 0:
            made[bad][2, 3] = INF
        return made

    @pytest.mark.parametrize("bad", range(-1, 8))
    def test_every_gradient_is_multiplied_and_looked_at(self, make: Make, bad: int) -> None:
        gradients = self.gradients(bad)
        parameters = [nn.Parameter(torch.empty_like(g)) for g in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        found = make()._unscale_grads_(torch.optim.SGD(parameters, lr=1.0), torch.full((), 0.25), torch.zeros(()), True)
        assert found == {torch.device("cpu"): float(bad >= 0)}
        for number, gradient in enumerate(gradients):
            if number != bad:
                assert torch.equal(gradient, torch.ones_like(gradient))

    @pytest.mark.parametrize(
        ("values", "found"), [([16.0, 32.0, 64.0], 0.0), ([16.0, 32.0, INF], 1.0), ([16.0, 32.0, NAN], 1.0)]
    )
    def test_sparse_gradients(self, make: Make, values: list[float], found: float) -> None:
        parameter = nn.Parameter(torch.zeros(2, 3))
        parameter.grad = torch.sparse_coo_tensor(
            torch.tensor([[0, 1, 1], [2, 0, 2]]), values, (2, 3), check_invariants=True
        )
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        inverse, nothing = torch.full((1,), 0.25), torch.zeros(1)
        assert make()._unscale_grads_(optimizer, inverse, nothing, False)[torch.device("cpu")] == found
        if not found:
            assert parameter.grad.to_dense().tolist() == [[0.0, 0.0, 4.0], [8.0, 0.0, 16.0]]

    @pytest.mark.parametrize(("value", "found"), [(64.0, 0.0), (64000.0, 1.0)])
    def test_entries_of_one_index_are_added_before_they_are_looked_at(
        self, make: Make, value: float, found: float
    ) -> None:
        parameter = nn.Parameter(torch.zeros(2, 3, dtype=torch.float16))
        values = torch.tensor([value, 32.0, value], dtype=torch.float16)
        parameter.grad = torch.sparse_coo_tensor(
            torch.tensor([[0, 1, 0], [2, 0, 2]]), values, (2, 3), check_invariants=True
        )
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        said = make()._unscale_grads_(optimizer, torch.full((), 0.25), torch.zeros(()), True)
        assert said[torch.device("cpu")] == found

    def test_a_step_makes_do_with_the_parameters_that_have_gradients(self, scaler: GradScaler) -> None:
        used, unused, empty = (nn.Parameter(torch.ones(n)) for n in (2, 2, 0))
        scaler.scale(used.sum() + empty.sum()).backward()
        scaler.step(torch.optim.SGD([unused, empty, used], lr=0.5))
        scaler.update()
        assert used.tolist() == [0.5, 0.5]
        assert unused.tolist() == [1.0, 1.0]
        assert scaler.get_scale() == 256.0

    def test_gradients_of_zero_are_good_gradients(self, scaler: GradScaler) -> None:
        weight = nn.Parameter(torch.ones(2))
        scaler.scale((weight * 0).sum()).backward()
        scaler.step(torch.optim.SGD([weight], lr=0.5))
        scaler.update()
        assert weight.tolist() == [1.0, 1.0]
        assert scaler.get_scale() == 256.0


class TestUpdate:
    @pytest.mark.parametrize(
        ("overflows", "scale", "tracker"),
        [
            ("", 4.0, 0),
            (".", 4.0, 1),
            ("..", 8.0, 0),
            ("..x", 2.0, 0),
            (".x", 1.0, 0),
            (".x.", 1.0, 1),
            ("..x..", 4.0, 0),
            ("......", 32.0, 0),
        ],
    )
    def test_scale_and_tracker(self, make: Make, overflows: str, scale: float, tracker: int) -> None:
        s = make(init_scale=4.0, growth_factor=2.0, backoff_factor=0.25, growth_interval=2)
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for kind in overflows:
            optimizer.zero_grad()
            s.scale((weight * (1.0 if kind == "." else INF)).sum()).backward()
            s.step(optimizer)
            s.update()
        assert (s.get_scale(), s._get_growth_tracker()) == (scale, tracker)
        assert len(s._per_optimizer_states) == 0

    def test_growth_stops_before_infinity(self, make: Make) -> None:
        s = make(init_scale=1e38, growth_factor=2.0**4, growth_interval=1)
        net = nn.Linear(5, 1)
        optimizer = torch.optim.Adam(net.parameters())
        s.scale((net(torch.randn(1, 5)) - 1e-30).square().mean()).backward()
        s.step(optimizer)
        s.update()
        assert s._scale is not None
        assert s._scale.isfinite()

    @pytest.mark.parametrize("new", [512.0, torch.tensor(512.0)])
    def test_a_new_scale_is_copied(self, scaler: GradScaler, new: Any) -> None:
        scaler.scale(torch.ones(()))
        scaler.update(new)
        assert scaler.get_scale() == 512.0
        assert scaler._scale is not new

    @pytest.mark.parametrize("new", [torch.tensor([1.0, 2.0]), torch.tensor(1.0, requires_grad=True)])
    def test_a_new_scale_that_is_no_number_is_refused(self, scaler: GradScaler, new: Tensor) -> None:
        scaler.scale(torch.ones(()))
        with pytest.raises(AssertionError, match="new_scale should be"):
            scaler.update(new)


class TestState:
    @pytest.mark.parametrize("in_use", [False, True])
    def test_a_state_replaces_all_settings(self, make: Make, in_use: bool) -> None:
        saved = make(init_scale=3.0, growth_factor=4.0, backoff_factor=0.5, growth_interval=2)
        s = make(init_scale=6.0, growth_factor=7.0, backoff_factor=0.8, growth_interval=1)
        s._init_growth_tracker = 7
        if in_use:
            s.scale(torch.full((1,), 4.0))
        s.load_state_dict(saved.state_dict())
        assert s.get_scale() == 3.0
        assert (s.get_growth_factor(), s.get_backoff_factor(), s.get_growth_interval()) == (4.0, 0.5, 2)
        assert (s._init_growth_tracker, s._get_growth_tracker()) == (0, 0)

    @pytest.mark.parametrize("in_use", [False, True])
    def test_a_pickle_has_all_settings(self, make: Make, in_use: bool) -> None:
        s = make(init_scale=3.0, growth_factor=4.0, backoff_factor=0.5, growth_interval=2)
        s._init_growth_tracker = 1
        if in_use:
            s.scale(torch.ones(()))
        copied = pickle.loads(pickle.dumps(s))
        assert type(copied) is type(s)
        assert copied.state_dict() == s.state_dict()
        assert copied._get_growth_tracker() == 1
        assert copied.scale(torch.ones(())) == 3.0

    def test_between_step_and_update_it_does_not_pickle(self, scaler: GradScaler) -> None:
        net = model()
        scaler.scale(loss_of(net, batches()[0])).backward()
        scaler.unscale_(optimizer_of(net))
        with pytest.raises(AssertionError, match="may only be pickled at the beginning"):
            pickle.dumps(scaler)

    def test_settings_can_be_changed(self, scaler: GradScaler) -> None:
        scaler.set_growth_factor(3.0)
        scaler.set_backoff_factor(0.25)
        scaler.set_growth_interval(9)
        state = scaler.state_dict()
        assert (state["growth_factor"], state["backoff_factor"], state["growth_interval"]) == (3.0, 0.25, 9)

    @pytest.mark.parametrize("settings", [{"growth_factor": 1.0}, {"backoff_factor": 1.0}])
    def test_factors_that_move_nowhere_are_refused(self, make: Make, settings: dict[str, float]) -> None:
        with pytest.raises(AssertionError, match=r"factor must be [<>] 1\.0"):
            make(**settings)


#: What is done wrong: whether the loss was scaled and had gradients, calls before it, the call, and what is said.
MISUSES: dict[str, tuple[bool, bool, str, str, str]] = {
    "step before scale": (False, False, "", "step", "Attempted step but _scale is None"),
    "unscale_ before scale": (False, False, "", "unscale_", "Attempted unscale_ but _scale is None"),
    "update before scale": (False, False, "", "update", "Attempted update but _scale is None"),
    "update before step": (True, True, "", "update", "No inf checks were recorded prior to update"),
    "no gradients": (True, False, "", "step", "No inf checks were recorded for this optimizer"),
    "unscale_ twice": (True, True, "unscale_", "unscale_", "already been called on this optimizer since"),
    "unscale_ after step": (True, True, "step", "unscale_", "being called after step"),
    "step twice": (True, True, "step", "step", "already been called since the last update"),
    "closure": (True, True, "", "closure", "[Cc]losure"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_refused(scaler: GradScaler, misuse: str) -> None:
    scaled, backward, before, call, says = MISUSES[misuse]
    net = model()
    optimizer = optimizer_of(net)
    loss = loss_of(net, batches()[0])
    loss = scaler.scale(loss) if scaled else loss
    if backward:
        loss.backward()
    calls: dict[str, Callable[[], Any]] = {
        "": lambda: None,
        "step": lambda: scaler.step(optimizer),
        "unscale_": lambda: scaler.unscale_(optimizer),
        "update": lambda: scaler.update(),
        "closure": lambda: scaler.step(optimizer, closure=lambda: loss),
    }
    calls[before]()
    with pytest.raises((AssertionError, RuntimeError), match=says):
        calls[call]()

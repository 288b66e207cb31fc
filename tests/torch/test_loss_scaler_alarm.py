# SPDX-License-Identifier: Apache-2.0
"""When step after step is skipped: a warning at the floor, an error that names the parameters, and what to do."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.errors import FloatwiseError, NonFiniteGradientsError
from floatwise.torch import LossScaler

INF, NAN = math.inf, math.nan


class Net(nn.Module):
    """An embedding, a block and a head; gradients are put in by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.block = nn.Sequential(nn.Linear(2, 2, bias=False), nn.LayerNorm(2))
        self.head = nn.Linear(2, 2)


BAD = {"block.0.weight": [[INF, 1.0], [NAN, -INF]], "head.bias": [NAN, 1.0]}


def step(s: LossScaler, net: nn.Module, optimizer: Optimizer, bad: dict[str, Any] | None, loss: float = 1.0) -> None:
    s.scale(torch.tensor(loss))
    for name, parameter in net.named_parameters():
        parameter.grad = torch.ones_like(parameter) if bad is None or name not in bad else torch.tensor(bad[name])
    s.step(optimizer)
    s.update()


def alarmed(s: LossScaler, net: nn.Module, optimizer: Optimizer, loss: float = 1.0) -> NonFiniteGradientsError:
    """Returns the error of the first update that raises one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(100):
            try:
                step(s, net, optimizer, BAD, loss)
            except NonFiniteGradientsError as error:
                return error
    pytest.fail("no error in 100 updates")


def sgd(net: nn.Module, fused: bool = False) -> Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, fused=fused)


class TestWhen:
    @pytest.mark.parametrize("fused", [False, True])
    @pytest.mark.parametrize(
        ("settings", "skips", "scale"),
        [
            ({}, 25, 1.0),  # 2**16 falls to 1 in 16
            ({"init_scale": 2.0**24}, 25, 1.0),  # in 24
            ({"alarm_after": 3}, 3, 2.0**13),
            ({"alarm_after": 3, "dynamic": False}, 3, 2.0**16),
            ({"alarm_after": 30, "floor": 2.0**-20}, 30, 2.0**-14),
        ],
    )
    def test_after_so_many_skips_in_a_row(
        self, settings: dict[str, Any], skips: int, scale: float, fused: bool
    ) -> None:
        net, s = Net(), LossScaler("cpu", **settings)
        weights = [p.detach().clone() for p in net.parameters()]
        error = alarmed(s, net, sgd(net, fused))
        assert (error.consecutive_skips, s.skipped_steps, s.get_scale()) == (skips, skips, scale)
        assert all(map(torch.equal, weights, net.parameters()))

    def test_a_good_step_starts_the_count_anew(self) -> None:
        net, s = Net(), LossScaler("cpu", alarm_after=3)
        optimizer = sgd(net)
        for bad in (BAD, BAD, None, BAD, BAD, None):
            step(s, net, optimizer, bad)
        assert alarmed(s, net, optimizer).consecutive_skips == 3

    def test_who_goes_on_is_told_again_after_as_many_more(self) -> None:
        net, s = Net(), LossScaler("cpu", alarm_after=3)
        optimizer = sgd(net)
        assert [alarmed(s, net, optimizer).consecutive_skips for _ in range(3)] == [3, 6, 9]
        step(s, net, optimizer, None)  # it is in order: the gradients are good, and the step is made
        assert s.last_step == "stepped"
        assert alarmed(s, net, optimizer).consecutive_skips == 3

    def test_the_first_skip_at_the_floor_warns(self) -> None:
        net, s = Net(), LossScaler("cpu", init_scale=4.0)
        s.watch(net)
        optimizer = sgd(net)
        step(s, net, optimizer, BAD)
        step(s, net, optimizer, BAD)  # from 2 to the floor
        with pytest.warns(UserWarning, match=r"loss scale 1, which falls no further.*head\.bias \(Linear") as caught:
            step(s, net, optimizer, BAD)
        assert caught[0].filename == __file__
        step(s, net, optimizer, BAD)  # once is enough

    def test_a_static_scale_has_no_floor_to_warn_at(self) -> None:
        net, s = Net(), LossScaler("cpu", init_scale=1.0, dynamic=False)
        step(s, net, sgd(net), BAD)

    def test_it_can_be_turned_off(self) -> None:
        net, s = Net(), LossScaler("cpu", init_scale=1.0, alarm_after=None)
        optimizer = sgd(net)
        for _ in range(70):
            step(s, net, optimizer, BAD)
        assert s.consecutive_skips == 70

    def test_who_unscales_by_himself_is_told_too(self) -> None:
        net, s = Net(), LossScaler("cpu", alarm_after=2)
        s.watch(net)
        s.scale(torch.ones(()))
        net.head.bias.grad = torch.tensor(BAD["head.bias"])
        s.update_from(torch.tensor(1.0))
        with pytest.raises(NonFiniteGradientsError, match=r"head\.bias"):
            s.update_from(torch.tensor(1.0))


class TestWhatItSays:
    def test_parameters_modules_and_counts_nearest_the_loss_first(self) -> None:
        net, s = Net(), LossScaler("cpu")
        s.watch(net)
        error = alarmed(s, net, sgd(net))
        assert [str(g) for g in error.gradients] == [
            "head.bias (Linear, shape [2], 1 NaN of 2 values)",
            "block.0.weight (Linear, shape [2, 2], 2 infinite and 1 NaN of 4 values)",
        ]
        assert str(error) == (
            "25 steps in a row were skipped for gradients that are not finite, at loss scale 1, which falls no "
            "further. Not finite are 2 of 6 gradients, the last parameter first: head.bias (Linear, shape [2], 1 NaN "
            "of 2 values); block.0.weight (Linear, shape [2, 2], 2 infinite and 1 NaN of 4 values). The loss was "
            "finite, so they arise in the backward pass: keep the module named first in float32, or train in bfloat16; "
            "torch.autograd.set_detect_anomaly(True) names an operation that makes NaN"
        )

    @pytest.mark.parametrize(
        ("settings", "loss", "advice"),
        [
            ({}, NAN, "The loss was not finite either, which no loss scale cures: look at the inputs"),
            ({}, INF, "The loss was not finite either"),
            ({}, 1.0, "The loss was finite, so they arise in the backward pass: keep"),
            ({"dynamic": False}, 1.0, "The loss was finite"),
            ({"floor": 2.0**-20}, 1.0, r"which is still falling.*Start with a smaller init_scale"),
            ({"growth": "fixed"}, NAN, "The loss was not finite either"),
        ],
    )
    def test_what_to_do(self, settings: dict[str, Any], loss: float, advice: str) -> None:
        net, s = Net(), LossScaler("cpu", **settings)
        with pytest.raises(NonFiniteGradientsError, match=advice):
            raise alarmed(s, net, sgd(net), loss)

    def test_without_a_model_the_places_in_the_optimizer(self) -> None:
        net, s = Net(), LossScaler("cpu")
        error = alarmed(s, net, sgd(net))
        assert [g.name for g in error.gradients] == [  # type: ignore[attr-defined]
            "parameter 5 of group 0 of SGD",
            "parameter 1 of group 0 of SGD",
        ]

    def test_names_that_the_optimizer_knows(self) -> None:
        net, s = Net(), LossScaler("cpu")
        error = alarmed(s, net, torch.optim.SGD(net.named_parameters(), lr=0.1))
        assert [g.name for g in error.gradients] == ["head.bias", "block.0.weight"]  # type: ignore[attr-defined]

    def test_two_optimizers_and_two_models(self) -> None:
        nets, s = (Net(), Net()), LossScaler("cpu", alarm_after=1)
        s.watch(nets[0])
        s.watch(nets[1].head)
        optimizers = [sgd(net) for net in nets]
        s.scale(torch.ones(()))
        nets[0].head.bias.grad = nets[1].block[0].weight.grad = None
        nets[0].embed.weight.grad = torch.full((3, 2), INF)
        nets[1].embed.weight.grad = torch.full((3, 2), NAN)
        nets[1].head.bias.grad = torch.tensor([1.0, INF])
        for optimizer in optimizers:
            s.step(optimizer)
        with pytest.raises(NonFiniteGradientsError) as caught:
            s.update()
        assert {g.name for g in caught.value.gradients} == {  # type: ignore[attr-defined]
            "embed.weight",
            "bias",
            "parameter 0 of group 0 of SGD (optimizer 1)",
        }

    def test_a_long_list_is_cut(self) -> None:
        net, s = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(9)]), LossScaler("cpu", alarm_after=1)
        s.watch(net)
        with pytest.raises(NonFiniteGradientsError, match=r"8\.weight.*4\.weight \([^)]*\); and 4 more") as caught:
            step(s, net, sgd(net), {f"{i}.weight": [[NAN]] for i in range(9)})
        assert len(caught.value.gradients) == 9
        assert "3.weight" not in str(caught.value)

    def test_gradients_that_are_gone_are_not_named(self) -> None:
        net, s = Net(), LossScaler("cpu", alarm_after=1)
        optimizer = sgd(net)
        s.scale(torch.ones(()))
        net.head.bias.grad = torch.tensor([INF, 1.0])
        s.step(optimizer)
        optimizer.zero_grad()
        with pytest.raises(NonFiniteGradientsError, match="a step was skipped") as caught:
            s.update()
        assert caught.value.gradients == ()

    def test_sparse_gradients_are_counted(self) -> None:
        table, s = nn.Embedding(4, 2, sparse=True), LossScaler("cpu", alarm_after=1)
        s.watch(table)
        s.scale((table(torch.tensor([1, 1, 3])) * INF).sum()).backward()
        s.step(torch.optim.SGD(table.parameters(), lr=0.1))
        with pytest.raises(NonFiniteGradientsError, match=r"weight \(Embedding, shape \[4, 2\], 6 infinite of 6"):
            s.update()


class TestKeeping:
    def test_no_model_and_no_optimizer_is_kept_alive(self) -> None:
        net, s = Net(), LossScaler("cpu", alarm_after=2)
        s.watch(net)
        optimizer = sgd(net)
        step(s, net, optimizer, BAD)
        kept = weakref.ref(net), weakref.ref(optimizer)
        del net, optimizer
        gc.collect()
        assert [reference() for reference in kept] == [None, None]
        with pytest.raises(NonFiniteGradientsError):
            s.update_from(torch.tensor(1.0))

    @pytest.mark.parametrize("again", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"])
    def test_a_copy_watches_nothing_and_goes_on_counting(self, again: Any) -> None:
        net, s = Net(), LossScaler("cpu", alarm_after=2)
        s.watch(net)
        optimizer = sgd(net)
        step(s, net, optimizer, BAD)
        with pytest.raises(NonFiniteGradientsError, match=r"2 steps in a row.*parameter 5 of group 0"):
            step(again(s), net, optimizer, BAD)

    def test_the_error_pickles_and_is_what_it_says(self) -> None:
        net, s = Net(), LossScaler("cpu")
        error = alarmed(s, net, sgd(net))
        copied = pickle.loads(pickle.dumps(error))
        assert (str(copied), copied.gradients) == (str(error), error.gradients)
        assert isinstance(error, FloatwiseError)
        assert isinstance(error, FloatingPointError)


def test_names_follow_a_model_whose_parameters_are_replaced() -> None:
    """As `fully_shard` replaces them."""
    net, s = Net(), LossScaler("cpu", alarm_after=1)
    s.watch(net)
    net.head.bias = nn.Parameter(torch.zeros(2))
    values: Tensor = torch.tensor([INF, INF])
    s.scale(torch.ones(()))
    net.head.bias.grad = values
    s.step(sgd(net))
    with pytest.raises(NonFiniteGradientsError, match=r"head\.bias \(Linear, shape \[2\], 2 infinite of 2 values\)"):
        s.update()

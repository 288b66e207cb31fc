# SPDX-License-Identifier: Apache-2.0
"""The probe: which tensors it summarises under which site and role, and that it disturbs no kind of model."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

from floatwise.probe.observer import Probe
from floatwise.stats import summarise
from floatwise.tap.core import Tap
from floatwise.tap.paths import ModulePaths


@contextmanager
def probing(full: bool = True) -> Iterator[Probe]:
    paths = ModulePaths()
    probe = Probe(paths.of, full=full)
    with Tap([probe], paths):
        yield probe
        probe.end_iteration()


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def counts(tensor: Tensor) -> list[int]:
    return [int(count) for count in summarise(tensor.detach().numpy()).counts]


def test_each_role_has_the_values_of_its_tensor() -> None:
    torch.manual_seed(0)
    first, last, x = nn.Linear(4, 8), nn.Linear(8, 1), torch.randn(16, 4)
    model = nn.Sequential(first, nn.ReLU(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    kept: dict[str, Tensor] = {"input": x, "weight": first.weight.detach().clone()}
    with probing() as probe:
        hidden = first(x)
        hidden.register_hook(lambda grad: kept.update(grad_output=grad.clone()))
        kept["output"] = hidden.detach().clone()
        last(model[1](hidden)).square().mean().backward()
        assert first.weight.grad is not None
        kept["weight_grad"] = first.weight.grad.clone()
        optimizer.step()
        kept["update"] = first.weight.detach() - kept["weight"]
    summaries = probe.collector.summaries()
    for role in ("input", "output", "grad_output"):
        assert summaries["0", role].counts.tolist() == counts(kept[role]), role
    for role in ("weight", "weight_grad", "update"):
        assert summaries["0.weight", role].counts.tolist() == counts(kept[role]), role
    assert ("1", "output") in summaries
    assert ("1", "input") not in summaries, "inputs are those of operators"


def test_sites_tell_kind_shape_weights_and_calls() -> None:
    model = two_layers()
    with probing() as probe:
        for _ in range(3):
            F.mse_loss(model(torch.randn(16, 4)), torch.zeros(16, 1)).backward()
    sites = {site.path: site for site in probe.sites(3)}
    first, loss = sites["0"], sites[":mse_loss"]
    assert (first.kind, first.parent, first.matrix, first.calls) == ("linear", "", True, 3)
    assert (first.m, first.n, first.k, first.flops) == (16, 8, 4, 2 * 16 * 8 * 4)
    assert first.weights == ("0.bias", "0.weight")
    assert (sites["1"].kind, sites["1"].matrix, sites["1"].flops) == ("ReLU", False, 0)
    assert sites["2"].sources == ("0",)
    assert (loss.kind, loss.parent, loss.matrix) == ("mse_loss", "", False)
    assert list(sites) == ["0", "1", "2", "", ":mse_loss"]


def test_parameters_are_counted_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight
            self.frozen = nn.Linear(2, 2).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))  # type: ignore[no-any-return]

    with probing() as probe:
        Tied()(torch.arange(3)).sum().backward()
    assert [name for name, _ in probe.parameters] == ["embed.weight"]


def test_a_script_of_plain_tensors_is_named_as_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.w1 = torch.randn(4, 3, requires_grad=True)  # type: ignore[attr-defined]
    hidden = torch.randn(3, 1, requires_grad=True)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with probing() as probe:
        (torch.randn(5, 4) @ main.w1 @ hidden).sum().backward()
    unnamed, named = sorted(name for name, _ in probe.parameters)
    assert named == "w1"
    assert unnamed.startswith("parameter_")
    assert ("w1", "weight_grad") in probe.collector.summaries()


def test_only_the_optimizers_own_parameters_are_its_weights() -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with probing() as probe:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    weights = {path for path, role in probe.collector.summaries() if role == "weight"}
    assert weights == {"2.weight", "2.bias"}


def test_a_loop_is_looked_at_a_few_times_per_iteration() -> None:
    layer = nn.Linear(4, 4)
    with probing() as probe:
        for _ in range(2):
            x = torch.randn(2, 4)
            for _ in range(100):
                x = layer(x)
            x.sum().backward()
            probe.end_iteration()
    (site,) = probe.sites(2)
    assert site.calls == 200
    summaries = probe.collector.summaries()
    assert summaries["", "input"].observations == summaries["", "grad_output"].observations == 2 * 8


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_are_seen_once_and_as_without(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self, saves: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.saves, self.first, self.block = saves, nn.Linear(4, 8), two_layers_of(8)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            output = checkpoint(self.block, hidden, use_reentrant=reentrant) if self.saves else self.block(hidden)
            return output  # type: ignore[no-any-return]

    seen = []
    for saves in (False, True):
        model, x = Net(saves), torch.ones(3, 4)
        with probing() as probe:
            for _ in range(2):
                model(x).square().sum().backward()
                probe.end_iteration()
        sites = {site.path: (site.kind, site.matrix, site.calls, site.flops) for site in probe.sites(2)}
        values = {key: s.counts.tolist() for key, s in probe.collector.summaries().items()}
        seen.append((sites, values))
    assert seen[0] == seen[1]


def two_layers_of(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))


def test_while_inactive_nothing_is_kept() -> None:
    model = two_layers()
    with probing() as probe:
        probe.active = False
        model(torch.randn(2, 4)).sum().backward()
    assert probe.collector.summaries() == {}
    assert probe.sites(1) == ()


def test_a_model_made_where_another_was_is_seen() -> None:
    with probing() as probe:
        for _ in range(6):
            nn.MSELoss()(two_layers()(torch.randn(2, 4)), torch.zeros(2, 1)).backward()
    assert ("0.weight", "weight_grad") in probe.collector.summaries()
    assert probe.collector.summaries()["0.weight", "weight_grad"].observations == 6


def lazy() -> Tensor:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    model(torch.randn(2, 4))
    return model(torch.randn(2, 4))  # type: ignore[no-any-return]


def complex_numbers() -> Tensor:
    return nn.Linear(4, 2, dtype=torch.complex64)(torch.randn(3, 4, dtype=torch.complex64)).abs()  # type: ignore[no-any-return]


def in_place() -> Tensor:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))(torch.randn(2, 4))  # type: ignore[no-any-return]


def views_written_to() -> Tensor:
    hidden = nn.Linear(4, 8)(torch.randn(2, 4)) * 1
    hidden[:, :2] += 1
    first, second = hidden.chunk(2, -1)
    return torch.mul(first, second)


def parametrized() -> Tensor:
    first = parametrizations.weight_norm(nn.Linear(4, 8))
    model = nn.Sequential(first, parametrizations.spectral_norm(nn.Linear(8, 1)))
    return model(torch.randn(2, 4))  # type: ignore[no-any-return]


def packed() -> Tensor:
    sequences = rnn.pack_padded_sequence(torch.randn(3, 2, 4), torch.tensor([3, 2]))
    return nn.LSTM(4, 6, num_layers=2, bidirectional=True, proj_size=3)(sequences)[0].data  # type: ignore[no-any-return]


def nested() -> Tensor:
    ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged, requires_grad=True)
    return nn.Linear(4, 2)(ragged).values()  # type: ignore[no-any-return]


def sparse_gradients() -> Tensor:
    return nn.Embedding(5, 4, sparse=True)(torch.arange(3))  # type: ignore[no-any-return]


def keywords() -> Tensor:
    q = torch.randn(2, 3, 4, requires_grad=True)
    return F.scaled_dot_product_attention(query=q, key=q, value=q)


def float8() -> Tensor:
    x = torch.randn(2, 4, requires_grad=True)
    F.linear(x, torch.randn(3, 4)).to(torch.float8_e4m3fn)
    return x * 1


def anomaly_mode() -> Tensor:
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        return two_layers()(torch.randn(2, 4))  # type: ignore[no-any-return]


def on_the_meta_device() -> Tensor:
    with torch.device("meta"):
        two_layers()(torch.randn(2, 4)).sum().backward()
    return torch.ones(1, requires_grad=True) * 1


def double_backward() -> Tensor:
    x = torch.randn(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(two_layers()(x).tanh().sum(), x, create_graph=True)
    return gradient.square()


def several_outputs() -> Tensor:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
            return {"parts": [x * 2, x + 1]}

    parts = Two()(two_layers()(torch.randn(2, 4)))["parts"]
    return torch.cat(parts)


KINDS: list[Callable[[], Tensor]] = [
    lazy,
    complex_numbers,
    in_place,
    views_written_to,
    parametrized,
    packed,
    nested,
    sparse_gradients,
    keywords,
    float8,
    on_the_meta_device,
    double_backward,
    several_outputs,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("run", [*KINDS, anomaly_mode], ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_kind_of_model_runs_under_the_probe(run: Callable[[], Tensor], full: bool) -> None:
    torch.manual_seed(0)
    alone = run()
    torch.manual_seed(0)
    with probing(full) as probe:
        watched = run()
        watched.sum().backward()
    assert torch.equal(alone, watched)
    assert all(site.path is not None for site in probe.sites(1))


def test_gradients_of_the_outputs_are_those_of_the_script() -> None:
    """Hooks read gradients and leave them alone."""
    gradients = []
    for watched in (False, True):
        torch.manual_seed(3)
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        x = torch.randn(2, 5, 8)
        if watched:
            with probing():
                model(x).square().sum().backward()
        else:
            model(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_an_inactive_probe_ignores_gradients_that_come_late() -> None:
    with probing() as probe:
        loss = two_layers()(torch.randn(2, 4)).sum()
    probe.active = False
    loss.backward()
    probe.collector.flush()
    assert {role for _, role in probe.collector.summaries()} == {"input", "output"}

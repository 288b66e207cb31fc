# SPDX-License-Identifier: Apache-2.0
"""The exported torchao source against the real library: what is float8, what is not, and the traps it avoids."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.running import run_program

from floatwise.exporters import export_plan, get_system
from floatwise.plan import ModulePolicy, Policy, recipe

pytestmark = [pytest.mark.slow]

MODULES = (
    ModulePolicy(module="blocks.*.kept", policy=Policy(compute_dtype="bfloat16")),
    ModulePolicy(module="tail.**", policy=Policy(compute_dtype="bfloat16")),
)

COMMON = """
import json, sys, warnings
import torch
from torch import nn

class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.cast = nn.Linear(32, 32, bias=False)
        self.kept = nn.Linear(32, 32)
        self.doubled = Doubled(32, 32)
    def forward(self, x):
        return x + self.doubled(self.kept(torch.relu(self.cast(self.norm(x)))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.tail = nn.Sequential(nn.Linear(32, 32))
        self.head = nn.Linear(32, 5)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.tail(x))

OPERANDS, scaled_mm = set(), torch._scaled_mm

def noted_scaled_mm(a, b, *args, **kwargs):
    OPERANDS.add((*names([a]), *names([b])))
    return scaled_mm(a, b, *args, **kwargs)

torch._scaled_mm = noted_scaled_mm

def names(tensors):
    return sorted({str(t.dtype).removeprefix("torch.") for t in tensors})

def train(model, autocast):
    outputs = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            module.register_forward_hook(lambda m, i, o, name=name: outputs.__setitem__(name, names([o])[0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y, losses = torch.randn(32, 32), torch.randint(0, 5, (32,)), []
    OPERANDS.clear()
    for _ in range(3):
        with autocast("cpu"):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        grads = names(p.grad for p in model.parameters())
        optimizer.zero_grad()
    return {
        "float8": sorted(n for n, m in model.named_modules() if type(m).__name__ == "Float8Linear"),
        "wrapped": sorted(n for n, p in model.named_parameters() if "MXFP8" in type(p.data).__name__),
        "outputs": outputs,
        "weights": names(model.parameters()),
        "grads": grads,
        "states": names(s for st in optimizer.state.values() for s in st.values() if s.numel() > 1),
        "operands": sorted(OPERANDS),
        "losses": losses,
    }
def as_on_cuda():
    # Float8Linear asks for CUDA's autocast only: let it see the CPU's.
    torch.is_autocast_enabled = lambda device="cpu", real=torch.is_autocast_enabled: real(device)
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")
torch.manual_seed(0)
"""


def exported(name: str, **values: Any) -> str:
    return export_plan(recipe(name, **values), get_system("torchao")).text


TRAPS = """
from torchao.float8 import convert_to_float8_training
from torchao.quantization import quantize_

def warned(convert, model):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = convert(model)
    return type(model[0]).__name__, [str(w.message) for w in found if "float8" in str(w.message)]

plain, space = small["fp8-tensorwise"], {}
traps = {
    "theirs": warned(lambda m: convert_to_float8_training(m, module_filter_fn=plain["is_float8"]), SMALL()),
    "ours": warned(plain["to_float8"], SMALL()),
}
unfiltered = nn.ModuleDict({"odd": nn.Linear(30, 30), "doubled": Doubled(32, 32)})
x, before = torch.ones(16, 32), unfiltered["doubled"]
unfiltered = convert_to_float8_training(unfiltered)
traps["unfiltered"] = {name: type(module).__name__ for name, module in unfiltered.items()}
traps["ratio"] = (before(x).abs().mean() / unfiltered["doubled"](x).abs().mean()).item()

mx, model = small["mxfp8"], nn.Sequential(nn.Linear(32, 32))
traps["mx takes a bias"] = mx["is_float8"](model[0], "")
quantize_(model, mx["CONFIG"], filter_fn=lambda module, name: isinstance(module, nn.Linear))
with torch.no_grad():
    model[0].bias.fill_(1000.0)
output = model(torch.randn(32, 32))
output.sum().backward()
traps["largest"], traps["bias is trained"] = output.abs().max().item(), model[0].bias.grad is not None
try:
    exec(sources["fp8-rowwise-gw-hp"], space)
    train(space["to_float8"](Net()), space["autocast"])
except RuntimeError as error:
    traps["on a CPU"] = str(error)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trains with every recipe in one process, tries the traps, and reports what the tensors were."""
    names = ("fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp", "mxfp8")
    # The device decides MX's kernel; the emulated recipe computes the same anywhere.
    sources = {n: exported(n, modules=MODULES).replace("MXFP8_RCEIL", "MXFP8_EMULATED_RCEIL") for n in names}
    code = f"""{COMMON}
sources, small, results = {sources!r}, {{}}, {{}}
SMALL = lambda: nn.Sequential(nn.Linear(30, 30))
for name in ("fp8-tensorwise", "mxfp8"):
    small[name] = {{}}
    exec(sources[name], small[name])
{TRAPS}
as_on_cuda()
for name, source in sources.items():
    space = {{}}
    exec(source, space)
    results[name] = train(space["to_float8"](Net()), space["autocast"])
print(json.dumps({{**results, "traps": traps}}))
"""
    return run_program(code, tmp_path_factory.mktemp("torchao"))


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("fp8-tensorwise", {("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")}),
        ("fp8-rowwise", {("float8_e4m3fn", "float8_e4m3fn")}),
        ("fp8-rowwise-gw-hp", {("float8_e4m3fn", "float8_e4m3fn")}),
    ],
)
def test_the_layers_of_the_plan_multiply_in_float8(trained: Any, name: str, operands: set[tuple[str, str]]) -> None:
    found = trained[name]
    assert found["float8"] == ["blocks.0.cast", "blocks.1.cast"]
    assert {tuple(pair) for pair in found["operands"]} == operands


@pytest.mark.parametrize("name", ["fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp", "mxfp8"])
def test_all_else_is_as_the_plan_read_back_says(trained: Any, name: str) -> None:
    found = trained[name]
    # The emulated MX product hands on its input's format; that of Blackwell's units is bfloat16.
    left_out = ("norm", "cast") if name == "mxfp8" else ("norm",)
    linear = {k: v for k, v in found["outputs"].items() if not k.endswith(left_out)}
    assert set(linear.values()) == {"bfloat16"}
    assert (found["weights"], found["grads"], found["states"]) == (["float32"], ["float32"], ["float32"])
    assert found["losses"][-1] < found["losses"][0]


def test_mx_wraps_the_weights_of_the_same_layers(trained: Any) -> None:
    wrapped = trained["mxfp8"]["wrapped"]
    assert wrapped == ["blocks.0.cast.weight", "blocks.1.cast.weight"]


def test_torchao_leaves_the_bias_out_of_mx_products_so_such_layers_are_left_out(trained: Any) -> None:
    traps = trained["traps"]
    assert traps["largest"] < 100.0
    assert not traps["bias is trained"]
    assert not traps["mx takes a bias"]


def test_on_a_cpu_the_float8_layers_do_not_see_autocast(trained: Any) -> None:
    assert "expected m1 and m2 to have the same dtype" in trained["traps"]["on a CPU"]


def test_nothing_eligible_is_silent_in_torchao_and_warned_of_here(trained: Any) -> None:
    said = "no linear layer is eligible for float8: sizes are no multiples of 16, or all are left out"
    assert trained["traps"]["theirs"] == ["Linear", []]
    assert trained["traps"]["ours"] == ["Linear", [said]]


def test_without_a_filter_a_subclass_of_linear_loses_its_forward(trained: Any) -> None:
    traps = trained["traps"]
    assert traps["unfiltered"] == {"odd": "Float8Linear", "doubled": "Float8Linear"}
    assert traps["ratio"] == pytest.approx(2.0, rel=0.05)

# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch written and read: the module's text, any script's calls, and what is wrong with them."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, BadInputError, PlanError
from floatwise.exporters import SYSTEMS, recognise
from floatwise.exporters.read import settings_of_text
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, Reductions, recipe
from floatwise.plan.match import match_module

ISLANDS = (
    ModulePolicy(module="blocks.*.norm[12]", policy=Policy(compute_dtype="float32"), reason='sums "overflow"'),
    ModulePolicy(module="head", policy=Policy(compute_dtype="bfloat16", output_dtype="bfloat16")),
)
BF16 = '''\
"""Mixed precision by torch.amp. Weights are float32, products bfloat16. Needs torch 2.6 or newer and nothing else.

    model = prepare(model)  # before the optimizer is built and before DDP; the model stays in float32
    scaler = make_scaler()
    for number, (inputs, target) in enumerate(loader, start=1):
        with autocast():
            loss = criterion(model(inputs), target) / accumulate
        scaler.scale(loss).backward()  # outside autocast
        if number % accumulate == 0:
            scaler.unscale_(optimizer)  # once, after the last backward and before clipping
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

Evaluate under autocast() too. Save scaler.state_dict() beside the states of the model and the optimizer.
"""

import torch
from torch.utils._pytree import tree_map

PARAM_DTYPE = torch.float32
COMPUTE_DTYPE = torch.bfloat16
OUTPUT_DTYPE = torch.float32
FLOAT32_MATMUL = "ieee"
LOSS_SCALE = None


def autocast(device="cuda"):
    """Around forward and loss: products compute in COMPUTE_DTYPE, what needs float32 stays in it."""
    return torch.autocast(device, dtype=COMPUTE_DTYPE)


def prepare(model):
    """Sets float32 products and the format of the outputs; returns the model."""
    torch.set_float32_matmul_precision("high" if FLOAT32_MATMUL == "tf32" else "highest")
    model.register_forward_hook(_hand_on)
    return model


def _hand_on(model, inputs, outputs):
    return _cast(outputs, OUTPUT_DTYPE)


def _cast(values, dtype):
    floating = (torch.float32, torch.float16, torch.bfloat16)
    return tree_map(lambda v: v.to(dtype) if isinstance(v, torch.Tensor) and v.dtype in floating else v, values)


def make_scaler(device="cuda"):
    """Returns a scaler that passes everything through: no gradient is float16, so there is nothing to scale."""
    return torch.amp.GradScaler(device, enabled=False)
'''


def test_the_module_of_a_plain_plan_is_this_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    result = exported(recipe("bf16-mixed"), "torch-amp")
    assert result.text == BF16
    assert result.file_name == "precision.py"
    assert result.notes == ()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "fp16-master"])
def test_every_module_is_python_in_the_reader_s_language(
    name: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", language)
    modules = () if recipe(name).compute_dtype == "float32" else ISLANDS[:1]
    text = exported(recipe(name, modules=modules), "torch-amp").text
    tree = ast.parse(text)
    comments = [ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    told = [ast.get_docstring(tree) or "", *(doc for doc in comments if doc)]
    assert all(doc.isascii() is (language == "en") for doc in told)
    assert max(map(len, text.splitlines())) <= 120
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "floatwise" not in {str(name).partition(".")[0] for name in imported}


def test_nearly_the_whole_plan_comes_back() -> None:
    scale = LossScale(mode="static", initial_scale=1000.0, hysteresis=3, floor=0.25, ceiling=2.0**20, growth="fixed")
    plan = recipe(
        "fp16-mixed",
        loss_scale=scale,
        float32_matmul="tf32",
        modules=(ISLANDS[0], ModulePolicy(module="a.**", policy=Policy(compute_dtype="float16"))),
        policy=Policy(compute_dtype="float16", output_dtype="float16"),
    )
    result = exported(plan, "torch-amp")
    assert result.reading.plan == plan
    assert result.reading.findings == ()


def test_what_it_cannot_hold_is_said() -> None:
    plan = recipe("fp16-master", reductions=Reductions(reduce_dtype="float16", buffer_dtype="float16"))
    assert {field: text.split(":")[0] for field, text in said(exported(plan, "torch-amp")).items()} == {
        "recipe": "The weights stay in float32 and are their own master weights",
        "policy.param_dtype": "The weights stay in float32 and are their own master weights",
        "weights.master": "The weights stay in float32 and are their own master weights",
        "loss_scale.growth": "The scale grows after every growth_interval good steps without looking for room, up to "
        "its ceiling",
        "reductions.reduce_dtype": "The module sums nothing over processes; DDP sums gradients in float32.",
        "reductions.buffer_dtype": "autocast leaves buffers as they are",
    }


def test_a_scale_for_what_is_lost_is_left_out() -> None:
    plan = recipe("bf16-mixed", loss_scale=LossScale(), reductions=Reductions(reduce_dtype="float16"))
    result = exported(plan, "torch-amp")
    assert "LOSS_SCALE = None" in result.text
    assert said(result)["loss_scale.mode"].startswith("With what is said above no gradient is float16")


def test_float8_is_refused() -> None:
    with pytest.raises(PlanError, match="casts whole tensors and has no float8"):
        exported(recipe("fp8-rowwise"), "torch-amp")


def test_older_torch_is_refused() -> None:
    with pytest.raises(BadInputError, match="its keys are known from"):
        exported(recipe("bf16-mixed"), "torch-amp", version="2.5.1")


GLOBS = st.lists(
    st.sampled_from(["*", "**", "a", "b1", "?", "b[12]", "b[!1]", "[ab]*", "b[0-9]", "[[]x", "[]a]", "a-", "[a-]"]),
    min_size=1,
    max_size=4,
).map(".".join)
PATHS = st.lists(st.sampled_from(["a", "b", "b1", "b2", "bx", "[x", "]", "-", "a-"]), max_size=4).map(".".join)


def matcher() -> Any:
    """Returns the written module's own matching of globs, without torch."""
    text = exported(recipe("bf16-mixed", modules=ISLANDS), "torch-amp").text
    wanted = {"_covers", "_matches"}
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    room: dict[str, Any] = {}
    exec("from fnmatch import fnmatchcase\n" + "\n".join(map(ast.unparse, functions)), room)
    return room["_covers"]


COVERS = matcher()


@given(glob=st.one_of(GLOBS, st.just("(root)")), path=PATHS)
def test_its_globs_match_as_a_plan_s_do(glob: str, path: str) -> None:
    assert COVERS(glob, path) == match_module(glob, path)


SCRIPT = """
import torch
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{lines}
"""


def script(*lines: str) -> str:
    """Returns a training script with these lines, from line 5 on."""
    return SCRIPT.format(lines="\n".join(lines))


AUTO16 = 'with torch.autocast("cuda", dtype=torch.float16): pass'
AUTOBF = "with torch.amp.autocast(device_type='cuda:0', dtype=torch.bfloat16): pass"


@pytest.mark.parametrize(
    ("lines", "recipe_name", "codes"),
    [
        ((), "fp32", []),
        ((AUTOBF,), "bf16-mixed", []),
        ((AUTO16, "scaler = torch.amp.GradScaler('cuda')"), "fp16-mixed", []),
        ((AUTO16,), "fp16-mixed", ["no-loss-scale"]),
        ((AUTOBF, "scaler = torch.amp.GradScaler()"), "bf16-mixed", ["idle-loss-scale"]),
        ((AUTOBF, "scaler = torch.amp.GradScaler(enabled=use_float16)"), "bf16-mixed", []),
        ((AUTO16, "scaler = torch.amp.GradScaler(enabled=use_float16)"), "fp16-mixed", []),
        ((AUTO16, "scaler = torch.amp.GradScaler(enabled=False)"), "fp16-mixed", ["no-loss-scale"]),
        (
            ("with torch.autocast('cuda'): pass", "s = torch.amp.GradScaler('cuda')"),
            "fp16-mixed",
            ["default-autocast-dtype"],
        ),
        (("with torch.autocast('cpu'): pass",), "bf16-mixed", ["default-autocast-dtype"]),
        (
            ("with torch.cuda.amp.autocast(dtype=torch.bfloat16): pass",),
            "bf16-mixed",
            ["deprecated-autocast"],
        ),
        (
            ("with torch.cuda.amp.autocast(True, torch.float16): pass", "s = torch.cuda.amp.GradScaler(1024.0)"),
            "fp16-mixed",
            ["deprecated-autocast", "deprecated-scaler"],
        ),
        (("model.half()", "s = torch.amp.GradScaler()"), "fp16-master", ["unscale-float16", "pure-16-bit"]),
        (("model = model.to('cuda', torch.bfloat16)",), "bf16-master", ["pure-16-bit"]),
        (("model = Net().to('cuda').bfloat16()",), "bf16-master", ["pure-16-bit"]),
        (("model.half()", "model.float()"), "fp32", []),
        (("batch = batch.half()", "images = images.to(torch.bfloat16)"), "fp32", []),
        (("model = AutoModel.from_pretrained('x', dtype=torch.bfloat16)",), "bf16-master", ["pure-16-bit"]),
        (("model = AutoModel.from_pretrained('x', torch_dtype='float32')",), "fp32", []),
        (("torch.set_default_dtype(torch.bfloat16)",), "bf16-master", ["pure-16-bit"]),
        (("torch.set_float32_matmul_precision('high')",), "tf32", []),
        ((AUTOBF, "with torch.autocast('cuda', enabled=False): pass"), "bf16-mixed", []),
        (("with torch.autocast('cuda', enabled=False): pass", AUTOBF), "bf16-mixed", []),
        (("with torch.autocast('cuda', dtype=torch.float16, enabled=False): pass",), "fp32", []),
    ],
)
def test_scripts_are_read_by_their_calls(lines: tuple[str, ...], recipe_name: str, codes: list[str]) -> None:
    result = reading(script(*lines), "torch-amp")
    assert result.plan.recipe == recipe_name
    assert [finding.code for finding in result.findings] == codes


def test_the_scaler_of_a_script_is_read_with_its_positions() -> None:
    old = reading(script(AUTO16, "s = torch.cuda.amp.GradScaler(1024.0, 4.0, 0.25, 100)"), "torch-amp").plan.loss_scale
    new = reading(
        script(AUTO16, "s = torch.amp.GradScaler('cuda', 2.0**10, 4.0, 0.25, 100)"), "torch-amp"
    ).plan.loss_scale
    assert old == new
    assert new is not None
    assert (new.initial_scale, new.growth_factor, new.backoff_factor, new.growth_interval) == (1024.0, 4.0, 0.25, 100)
    assert (new.growth, new.floor) == ("fixed", 2.0**-126)


def test_our_own_scaler_is_read_with_its_limits() -> None:
    lines = (AUTO16, "s = fw.torch.LossScaler('cuda', floor=2, hysteresis=2, window_log2=(3, 20))")
    scale = reading(script(*lines), "torch-amp").plan.loss_scale
    assert scale == LossScale(floor=2.0, hysteresis=2, window_log2=(3, 20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            script("with torch.autocast('cuda', dtype=precision): pass"),
            "given:5: autocast: the format of this autocast is known only when the script runs; "
            "write dtype=torch.bfloat16 or torch.float16",
        ),
        (
            script("with torch.autocast(device): pass"),
            "given:5: autocast: the device, and with it the default format, of this autocast is known only when the "
            "script runs; write dtype=torch.bfloat16 or torch.float16",
        ),
        (
            script("with torch.autocast('cuda', dtype=torch.float32): pass"),
            "given:5: autocast: got float32, which autocast does not compute in: it warns and is off; "
            "write torch.bfloat16",
        ),
        (script("model.double()"), "given:5: double: got float64, which no plan has; write torch.float32"),
        (
            script(AUTO16, "s = torch.amp.GradScaler(init_scale=0)"),
            "given:6: GradScaler.init_scale: got 0, expected a number above 0 up to 2**127\n"
            "    why: the scale is a float32, and the loss times it must be finite",
        ),
        (
            script(AUTO16, "s = torch.amp.GradScaler(backoff_factor=1.5)"),
            "given:6: GradScaler.backoff_factor: got 1.5, expected a number above 0 below 1",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadFileError) as caught:
        reading(text, "torch-amp")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "COMPUTE_DTYPE = torch.float16",
            "COMPUTE_DTYPE = torch.float64",
            "COMPUTE_DTYPE: got torch.float64, expected torch.float32 or torch.bfloat16 or torch.float16",
        ),
        ("LOSS_SCALE = {", "LOSS_SCALE = 1024.0; OTHER = {", "LOSS_SCALE: got 1024.0, expected None or a table"),
        ('"hysteresis": 1', '"histeresis": 1', "did you mean 'hysteresis'?"),
        ('"floor": 1.0', '"floor": 2.0**20', "LOSS_SCALE.floor: got 1048576.0, above initial_scale = 65536.0"),
        ('"backoff_factor": 0.5', '"backoff_factor": 1', "LOSS_SCALE.backoff_factor: got 1, expected a number above 0"),
        ('"blocks.*.norm[12]"', '"blocks..norm"', "MODULES: got the module glob 'blocks..norm'"),
        (
            'torch.float32, torch.float32, "',
            'torch.int8, torch.float32, "',
            "MODULES: got torch.int8 and torch.float32",
        ),
        ("PARAM_DTYPE = torch.float32", "PARAM_DTYPE = torch.float16", "PARAM_DTYPE: got torch.float16"),
    ],
)
def test_wrong_constants_are_said(old: str, new: str, message: str) -> None:
    text = exported(recipe("fp16-mixed", modules=ISLANDS[:1]), "torch-amp").text
    assert old in text
    with pytest.raises(BadFileError) as caught:
        reading(text.replace(old, new), "torch-amp")
    assert message in str(caught.value)


PLAIN = script(AUTOBF)


@pytest.mark.parametrize(
    ("text", "system"),
    [
        (PLAIN, "torch-amp"),
        (BF16, "torch-amp"),
        (PLAIN + "trainer = L.Trainer(max_epochs=3)\n", "lightning"),
        (PLAIN + 'trainer = Trainer(precision="bf16-mixed")\n', "lightning"),
        (PLAIN + "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)\n", "fsdp2"),
        (PLAIN + "policy = MixedPrecision(param_dtype=torch.bfloat16)\n", "fsdp1"),
        (PLAIN + "model = DistributedDataParallel(model)\n", "ddp"),
    ],
)
def test_a_script_is_the_system_s_that_it_says_most_of(text: str, system: str) -> None:
    assert recognise(settings_of_text(text, "python"), SYSTEMS.values()).name == system


def test_a_script_without_torch_is_nobody_s() -> None:
    with pytest.raises(BadFileError, match="this is no configuration of a system known here"):
        recognise(settings_of_text("print(1)\n", "python"), SYSTEMS.values())


def test_the_plan_of_a_script_can_be_exported_again() -> None:
    plan: Plan = reading(script(AUTO16, "s = torch.amp.GradScaler('cuda')"), "torch-amp").plan
    assert exported(plan, "ddp").reading.plan == plan

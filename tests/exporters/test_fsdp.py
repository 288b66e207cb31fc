# SPDX-License-Identifier: Apache-2.0
"""FSDP1 and FSDP2 written and read: golden texts, what is lost, what is wrong in a script."""

from __future__ import annotations

import pytest
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, BadInputError, PlanError
from floatwise.plan import LossScale, ModulePolicy, Policy, Reductions, recipe

FSDP1 = """import torch
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

# FullyShardedDataParallel(model, mixed_precision=MIXED_PRECISION, use_orig_params=True); keep the model in
# float32 before that: the shards are the master weights that the optimizer updates.
MIXED_PRECISION = MixedPrecision(
    param_dtype=torch.float16,
    reduce_dtype=torch.float32,
    buffer_dtype=torch.float32,
)
SCALER = ShardedGradScaler(
    device="cuda",
    init_scale=1024.0,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=2000,
)
"""
FSDP2 = """import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

# fully_shard(module, mp_policy=MIXED_PRECISION) for each block, then for the model; keep the model in float32
# before that: the shards are the master weights that the optimizer updates.
MIXED_PRECISION = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16,
    reduce_dtype=torch.bfloat16,
    output_dtype=torch.float32,
    cast_forward_inputs=True,
)
torch.set_float32_matmul_precision("high")
"""
OUR_SCALER = """SCALER = fw.torch.LossScaler(
    "cpu",
    init_scale=1024.0,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=2000,
    dynamic=True,
    floor=1.0,
    ceiling=16777216.0,
    growth="headroom",
    headroom_bits=4,
    hysteresis=1,
    window_log2=(3, 12),
)
"""
FLOAT16 = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=1024.0, window_log2=(3, 12)))


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")


def test_fsdp1_is_this_text() -> None:
    assert exported(FLOAT16, "fsdp1").text == FSDP1


def test_fsdp2_is_this_text() -> None:
    plan = recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16"), float32_matmul="tf32")
    result = exported(plan, "fsdp2")
    assert result.text == FSDP2
    assert result.reading.plan == plan


@pytest.mark.parametrize("system", ["fsdp1", "fsdp2"])
def test_our_scaler_holds_the_whole_loss_scale(system: str) -> None:
    result = exported(FLOAT16, system, device="cpu", scaler="floatwise")
    assert result.text.startswith("import floatwise as fw\nimport torch\n")
    assert result.text.endswith(OUR_SCALER)
    assert result.reading.plan.loss_scale == FLOAT16.loss_scale
    assert not any(field.startswith("loss_scale") for field in said(result))


def test_comments_are_in_the_reader_s_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    for system in ("fsdp1", "fsdp2"):
        assert "此前模型保持 float32" in exported(FLOAT16, system).text


def test_what_is_lost_is_said() -> None:
    plan = recipe(
        "bf16-master",
        modules=(ModulePolicy(module="head", policy=Policy(compute_dtype="float32")),),
        reductions=Reductions(accumulate_dtype="bfloat16", buffer_dtype="bfloat16"),
    )
    one, two = said(exported(plan, "fsdp1")), said(exported(plan, "fsdp2"))
    shared = {"recipe", "policy.param_dtype", "weights.master", "reductions.accumulate_dtype"}
    shared |= {'modules["head"].reason'}
    shared |= {f'modules["head"].policy.{name}_dtype' for name in ("param", "compute", "output")}
    assert set(one) == shared | {"policy.output_dtype"}
    assert set(two) == shared | {"reductions.buffer_dtype"}
    assert one["policy.output_dtype"] == "FSDP1 hands outputs on in the compute format: bfloat16."


def test_a_scale_for_what_is_lost_is_left_out() -> None:
    plan = recipe("bf16-mixed", loss_scale=LossScale(), reductions=Reductions(accumulate_dtype="float16"))
    for system in ("fsdp1", "fsdp2"):
        result = exported(plan, system)
        assert "SCALER" not in result.text
        assert said(result)["loss_scale.mode"].startswith("With what is said above no gradient is float16")


@pytest.mark.parametrize("system", ["fsdp1", "fsdp2", "ddp"])
def test_float8_and_older_torch_are_refused(system: str) -> None:
    with pytest.raises(PlanError, match="casts whole tensors and has no float8"):
        exported(recipe("fp8-tensorwise"), system)
    with pytest.raises(BadInputError, match="its keys are known from"):
        exported(recipe("bf16-mixed"), system, version="2.5")


SCRIPT = """
model = Net()
optimizer = AdamW(model.parameters())
{lines}
"""


def script(*lines: str) -> str:
    """Returns a training script with these lines, from line 4 on."""
    return SCRIPT.format(lines="\n".join(lines))


LOW = "param_dtype=torch.bfloat16"


@pytest.mark.parametrize(
    ("system", "lines", "formats", "codes"),
    [
        # (param, compute, output, reduce, accumulate, buffer)
        ("fsdp2", (f"MixedPrecisionPolicy({LOW})",), "32 b b b 32 32", []),
        ("fsdp2", (f"MixedPrecisionPolicy({LOW}, reduce_dtype=torch.float32)",), "32 b b 32 32 32", []),
        ("fsdp2", ("MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)",), "32 32 32 b 32 32", []),
        ("fsdp2", ("MixedPrecisionPolicy()",), "32 32 32 32 32 32", []),
        ("fsdp2", (f"MixedPrecisionPolicy({LOW}, cast_forward_inputs=False)",), "32 b b b 32 32", ["uncast-inputs"]),
        (
            "fsdp2",
            ("model.bfloat16()", f"MixedPrecisionPolicy({LOW}, reduce_dtype=torch.float32)"),
            "b b b 32 b b",
            ["pure-16-bit"],
        ),
        ("fsdp2", ("MixedPrecisionPolicy(param_dtype=torch.float16)",), "32 h h h 32 32", ["no-loss-scale"]),
        ("fsdp2", ("MixedPrecisionPolicy(param_dtype=torch.half)", "s = GradScaler()"), "32 h h h 32 32", []),
        ("fsdp2", (f"MixedPrecisionPolicy({LOW})", "s = GradScaler()"), "32 b b b 32 32", ["idle-loss-scale"]),
        ("fsdp1", (f"MixedPrecision({LOW})",), "32 b b b 32 32", []),
        ("fsdp1", ("MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)",), "32 b b 32 32 b", []),
        ("fsdp1", (f"MixedPrecision({LOW}, cast_root_forward_inputs=False)",), "32 b b b 32 32", ["uncast-inputs"]),
        ("fsdp1", (f"MixedPrecision({LOW}, keep_low_precision_grads=True)",), "32 b b b b 32", ["low-precision-grads"]),
        ("fsdp1", ("MixedPrecision(param_dtype=torch.float16)", "s = ShardedGradScaler()"), "32 h h h 32 32", []),
        ("fsdp1", ("model.to(torch.bfloat16)", "MixedPrecision()"), "b b b b b b", ["pure-16-bit"]),
    ],
)
def test_scripts_are_read_as_fsdp_trains_them(
    system: str, lines: tuple[str, ...], formats: str, codes: list[str]
) -> None:
    result = reading(script(*lines), system)
    plan, sums = result.plan, result.plan.reductions
    got = (
        *(plan.policy.param_dtype, plan.policy.compute_dtype, plan.policy.output_dtype),
        *(sums.reduce_dtype, sums.accumulate_dtype, sums.buffer_dtype),
    )
    names = {"32": "float32", "b": "bfloat16", "h": "float16"}
    assert got == tuple(names[name] for name in formats.split())
    assert [finding.code for finding in result.findings] == codes


def test_the_sharded_scaler_s_own_order_is_read() -> None:
    lines = ("MixedPrecision(param_dtype=torch.float16)", "s = ShardedGradScaler('cuda', 1024.0, 0.25, 4.0, 100)")
    scale = reading(script(*lines), "fsdp1").plan.loss_scale
    assert scale is not None
    assert (scale.initial_scale, scale.backoff_factor, scale.growth_factor, scale.growth_interval) == (
        1024,
        0.25,
        4,
        100,
    )


@pytest.mark.parametrize(
    ("system", "line", "message"),
    [
        (
            "fsdp2",
            "MixedPrecisionPolicy(param_type=torch.bfloat16)",
            "given:4: MixedPrecisionPolicy.param_type: PyTorch FSDP2 knows no such key; did you mean 'param_dtype'?",
        ),
        (
            "fsdp2",
            'MixedPrecisionPolicy(param_dtype="bfloat16")',
            'given:4: MixedPrecisionPolicy.param_dtype: got "bfloat16", expected torch.float32 or torch.bfloat16 or '
            "torch.float16 or torch.float or torch.half; did you mean 'torch.bfloat16'?",
        ),
        (
            "fsdp2",
            "MixedPrecisionPolicy(buffer_dtype=torch.bfloat16)",
            "given:4: MixedPrecisionPolicy.buffer_dtype: PyTorch FSDP2 knows no such key; did you mean ",
        ),
        (
            "fsdp1",
            "MixedPrecision(param_dtype=torch.float64)",
            "given:4: MixedPrecision.param_dtype: got torch.float64, expected torch.float32 or torch.bfloat16 or ",
        ),
        (
            "fsdp1",
            "MixedPrecision(keep_low_precision_grads=1)",
            "given:4: MixedPrecision.keep_low_precision_grads: got 1, expected true or false",
        ),
        ("fsdp1", 'MixedPrecision("16-mixed", "cuda")', "given:1: there is no call of MixedPrecision(...) in this"),
        ("fsdp2", "pass", "given:1: there is no call of MixedPrecisionPolicy(...) in this source"),
    ],
)
def test_wrong_arguments_are_said_with_their_line(system: str, line: str, message: str) -> None:
    with pytest.raises(BadFileError) as caught:
        reading(script(line), system)
    assert str(caught.value).startswith(message)

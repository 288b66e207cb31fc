# SPDX-License-Identifier: Apache-2.0
"""Lightning written and read: golden texts by strategy and form, aliases, contradictions, findings, versions."""

from __future__ import annotations

import pytest
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, BadInputError, PlanError
from floatwise.exporters import SYSTEMS, recognise
from floatwise.exporters.read import settings_of_text
from floatwise.plan import LossScale, Policy, Reductions, recipe

MIXED = '''import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision


def make_trainer(**others):
    """Returns a Trainer that trains in 16-mixed; `others` are its other arguments."""
    return Trainer(
        accelerator="gpu",
        plugins=MixedPrecision(
            "16-mixed",
            device="cuda",
            scaler=torch.amp.GradScaler(
                "cuda",
                init_scale=1024.0,
                growth_factor=2.0,
                backoff_factor=0.5,
                growth_interval=2000,
            ),
        ),
        **others,
    )
'''
FSDP = '''import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import FSDPPrecision
from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def make_trainer(**others):
    """Returns a Trainer that trains in 16-mixed; `others` are its other arguments."""
    precision = FSDPPrecision("16-mixed")
    # Its argument `scaler` always raises ValueError.
    precision.scaler = ShardedGradScaler(
        device="cuda",
        init_scale=1024.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
    )
    return Trainer(
        accelerator="gpu",
        plugins=precision,
        strategy=FSDPStrategy(
            mixed_precision=MixedPrecision(
                param_dtype=torch.float16,
                reduce_dtype=torch.float32,
                buffer_dtype=torch.float32,
            ),
        ),
        **others,
    )
'''
FABRIC = '''from lightning.fabric import Fabric


def make_fabric(**others):
    """返回以 bf16-mixed 训练的 Fabric；others 为其余参数。"""
    return Fabric(
        accelerator="cpu",
        precision="bf16-mixed",
        strategy="ddp",
        **others,
    )
'''
YAML = """trainer:
  accelerator: gpu
  strategy: auto
  plugins:
  - class_path: lightning.pytorch.plugins.MixedPrecision
    init_args:
      precision: 16-mixed
      device: cuda
      scaler:
        class_path: torch.amp.GradScaler
        init_args:
          device: cuda
          init_scale: 1024.0
          growth_factor: 2.0
          backoff_factor: 0.5
          growth_interval: 2000
"""
FLOAT16 = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=1024.0))
BFLOAT16 = recipe("bf16-mixed", policy=Policy(output_dtype="bfloat16"))


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")


def test_float16_is_a_plugin_with_the_plan_s_scaler() -> None:
    assert exported(FLOAT16, "lightning").text == MIXED
    assert exported(FLOAT16, "lightning", form="yaml").text == YAML


def test_fsdp_gets_its_formats_and_its_scaler() -> None:
    assert exported(FLOAT16, "lightning", strategy="fsdp").text == FSDP


def test_fabric_is_this_text_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    result = exported(recipe("bf16-mixed"), "lightning", strategy="ddp", device="cpu", **{"class": "fabric"})
    assert result.text == FABRIC
    assert result.reading.plan == recipe("bf16-mixed")  # Fabric hands outputs on in float32
    assert result.notes == ()


@pytest.mark.parametrize("form", ["python", "yaml"])
@pytest.mark.parametrize("strategy", ["auto", "ddp", "model_parallel"])
def test_our_scaler_holds_the_whole_loss_scale(form: str, strategy: str) -> None:
    plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=1024.0, window_log2=(2, 12)))
    result = exported(plan, "lightning", form=form, strategy=strategy, scaler="floatwise")
    assert result.reading.plan.loss_scale == plan.loss_scale


def test_a_communication_hook_reduces_in_sixteen_bits() -> None:
    plan = recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16"))
    text = exported(plan, "lightning", strategy="ddp").text
    assert "        strategy=DDPStrategy(\n            ddp_comm_hook=bf16_compress_hook,\n        ),\n" in text
    for options in ({"device": "cpu"}, {"class": "fabric"}, {"form": "yaml"}):
        result = exported(plan, "lightning", strategy="ddp", **options)
        assert said(result)["reductions.reduce_dtype"] == "Gradients are summed over processes in float32."


def test_deepspeed_s_scale_and_what_it_changes_are_said() -> None:
    scale = LossScale(initial_scale=3000.0, growth_factor=4.0, floor=0.5, hysteresis=2, growth="fixed")
    result = exported(recipe("fp16-mixed", loss_scale=scale), "lightning", strategy="deepspeed")
    assert "initial_scale_power=11,\n" in result.text
    assert "min_loss_scale=1,\n" in result.text
    read = result.reading.plan
    assert (read.recipe, read.weights.master, read.reductions.reduce_dtype) == ("fp16-master", "float32", "float16")
    assert said(result)["loss_scale.initial_scale"].endswith("3000 becomes 2048.")
    assert said(result)["loss_scale.floor"].endswith("2048.")  # one sentence for both
    assert any("counts overflows with good steps between them too" in note.what.en for note in result.notes)
    assert not any("fused" in note.what.en for note in result.notes)  # DeepSpeed clips by itself


def test_sixteen_bit_weights_become_mixed_and_not_true() -> None:
    result = exported(recipe("bf16-master"), "lightning")
    assert 'precision="bf16-mixed"' in result.text
    assert {"recipe", "policy.param_dtype", "weights.master"} <= set(said(result))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fsdp", "device": "cpu"}, "for GPUs only"),
        ({"strategy": "deepspeed", "device": "cpu"}, "for GPUs only"),
        ({"form": "yaml", "class": "fabric"}, "Fabric reads no YAML"),
        ({"strategy": "model_parallel", "version": "2.2.5"}, "There is no ModelParallelStrategy"),
    ],
)
def test_what_lightning_cannot_do_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        exported(recipe("bf16-mixed"), "lightning", **options)


def test_float8_and_unscaled_float16_reductions_are_refused() -> None:
    with pytest.raises(PlanError, match="has no float8"):
        exported(recipe("fp8-rowwise"), "lightning")
    plan = recipe("bf16-mixed", loss_scale=LossScale(), reductions=Reductions(reduce_dtype="float16"))
    for strategy in ("ddp", "fsdp"):
        with pytest.raises(PlanError, match="Lightning scales the loss for 16-mixed only"):
            exported(plan, "lightning", strategy=strategy)
    assert said(exported(plan, "lightning"))["loss_scale.mode"].startswith("With what is said above no gradient is")


def test_versions_without_the_true_precisions_are_refused() -> None:
    with pytest.raises(BadInputError, match="its keys are known from"):
        exported(recipe("bf16-mixed"), "lightning", version="2.0.9")


@pytest.mark.parametrize("call", ["L.Trainer", "Fabric"])
@pytest.mark.parametrize(
    ("argument", "recipe_name", "codes"),
    [
        ("", "fp32", []),
        ("precision=None", "fp32", []),
        ("precision=32", "fp32", []),
        ('precision="32-true"', "fp32", []),
        ('precision="bf16-mixed"', "bf16-mixed", []),
        ('precision="16-mixed"', "fp16-mixed", []),
        ("precision=16", "fp16-mixed", ["precision-alias"]),
        ('precision="16"', "fp16-mixed", ["precision-alias"]),
        ('precision="bf16"', "bf16-mixed", ["precision-alias"]),
        ('precision="bf16-true"', "bf16-master", ["pure-16-bit"]),
        ('precision="16-true"', "fp16-master", ["pure-16-bit", "no-loss-scale"]),
        ('precision="transformer-engine"', "fp8-tensorwise", ["pure-16-bit"]),
        ('precision="16-mixed", accelerator="cpu"', "bf16-mixed", ["cpu-float16"]),
        ('precision="16-mixed", strategy="fsdp"', "fp16-mixed", []),
        ('precision="bf16-mixed", strategy="deepspeed_stage_2"', "bf16-master", ["deepspeed-mixed"]),
        ('precision="16-true", strategy=DeepSpeedStrategy()', "fp16-master", []),
        ('precision="bf16-mixed", strategy="ddp_spawn"', "bf16-mixed", []),
        ('plugins=MixedPrecision("16-mixed", "cpu"), accelerator="cpu"', "fp16-mixed", []),
        ('plugins=[HalfPrecision("bf16-true")]', "bf16-master", ["pure-16-bit"]),
        ('plugins=FSDPPrecision("bf16-mixed"), strategy=FSDPStrategy()', "bf16-mixed", []),
        (
            'plugins=MixedPrecision("16-mixed", "cuda"), strategy=ModelParallelStrategy()',
            "fp16-mixed",
            [],
        ),
    ],
)
def test_each_precision_is_read_as_lightning_trains_it(
    call: str, argument: str, recipe_name: str, codes: list[str]
) -> None:
    result = reading(f"trainer = {call}({argument})\n", "lightning")
    assert result.plan.recipe == recipe_name
    assert [finding.code for finding in result.findings] == codes
    outputs = "float32" if call == "Fabric" or recipe_name == "fp32" else result.plan.compute_dtype
    assert result.plan.policy.output_dtype == outputs.replace("float8_e4m3fn", "bfloat16")


def test_a_plugin_in_a_variable_is_found_with_its_scaler() -> None:
    text = """
def main():
    scaler = torch.amp.GradScaler("cuda", init_scale=512.0)
    plugin = MixedPrecision("16-mixed", "cuda", scaler)
    trainer = L.Trainer(plugins=[plugin, other])
"""
    scale = reading(text, "lightning").plan.loss_scale
    assert scale is not None
    assert scale.initial_scale == 512.0


def test_fused_optimizers_with_clipping_are_found() -> None:
    text = 'AdamW(p, fused=True)\nTrainer(precision="{}", gradient_clip_val=1.0{})\n'
    codes = [
        [finding.code for finding in reading(text.format(*row), "lightning").findings]
        for row in (("bf16-mixed", ""), ("32-true", ""), ("bf16-mixed", ', strategy="deepspeed"'))
    ]
    assert codes == [["clip-with-fused"], [], ["deepspeed-mixed"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'Trainer(precision="bf16_mixed")',
            """given:1: Trainer.precision: got "bf16_mixed", expected "32-true" or "16-mixed" or "bf16-mixed" or \
"16-true" or "bf16-true" or "64-true" or "transformer-engine" or "transformer-engine-float16" or 16 or "16" or \
"bf16" or 32 or "32" or 64 or "64"; did you mean 'bf16-mixed'?""",
        ),
        (
            'Trainer(precission="bf16-mixed")',
            "given:1: Trainer.precission: Lightning knows no such key; did you mean 'precision'?",
        ),
        (
            'Trainer(precision="bf16-mixed", plugins=MixedPrecision("bf16-mixed", "cuda"))',
            "given:1: Trainer.precision: got the precision 'bf16-mixed' beside the plugin MixedPrecision, for which "
            "Lightning raises ValueError; delete one of them",
        ),
        (
            'Trainer(precision="64-true")',
            'given:1: Trainer.precision: got float64, which no plan has; write "32-true"',
        ),
        (
            'Trainer(precision="16-mixed", strategy=ModelParallelStrategy())',
            'given:1: Trainer.precision: got "16-mixed" with the strategy model_parallel, for which Lightning raises '
            "ValueError; expected 32-true or bf16-mixed or bf16-true or 16-true",
        ),
        (
            'Fabric(plugins=MixedPrecision("bf16-mixed", "cuda", scaler=GradScaler()))',
            "given:1: Fabric.plugins: got a scaler for bf16-mixed, for which Lightning raises an error; delete it: "
            "bfloat16 needs none",
        ),
        (
            'Fabric(plugins=FSDPPrecision("16-mixed", scaler=ShardedGradScaler()), strategy="fsdp")',
            "given:1: Fabric.plugins: got FSDPPrecision(..., scaler=...), which always raises ValueError (its check "
            "reads `precision` before it is set); set the attribute instead: plugin.scaler = ShardedGradScaler(...)",
        ),
        (
            'Trainer(plugins=MixedPrecision("16-mixed", "cuda"), strategy="fsdp")',
            "given:1: Trainer.plugins: got MixedPrecision with the strategy fsdp, which takes FSDPPrecision only; "
            "write that",
        ),
        (
            'Trainer(precision="bf16-mixed", strategy="fsdp", accelerator="cpu")',
            'given:1: Trainer.accelerator: got "cpu" with the strategy fsdp, which Lightning has for GPUs only',
        ),
        (
            'Trainer(precision="bf16-mixed", strategy="xla")',
            "given:1: Trainer.strategy: got 'xla', under which precision is not known here; known: auto, ddp, fsdp, "
            "model_parallel, deepspeed",
        ),
        (
            "Trainer(precision=choose())",
            "given:1: Trainer.precision: this is known only when the script runs; write it, as in "
            'precision="bf16-mixed"',
        ),
        (
            "Trainer(plugins=BitsandbytesPrecision('nf4'))",
            "given:1: Trainer.plugins: got BitsandbytesPrecision: no plan holds quantised weights",
        ),
    ],
)
def test_what_lightning_raises_for_is_said_with_its_line(line: str, message: str) -> None:
    with pytest.raises(BadFileError) as caught:
        reading(line + "\n", "lightning")
    assert str(caught.value) == message


def test_yaml_is_read_with_its_lines() -> None:
    assert reading("trainer:\n  precision: 16\n", "lightning", "yaml").plan.recipe == "fp16-mixed"
    assert reading(YAML, "lightning", "yaml").plan.loss_scale.initial_scale == 1024.0  # type: ignore[union-attr]
    with pytest.raises(BadFileError) as caught:
        reading("seed_everything: 1\ntrainer:\n  max_epochs: 3\n  precison: bf16-mixed\n", "lightning", "yaml")
    assert str(caught.value) == "given:4: trainer.precison: Lightning knows no such key; did you mean 'precision'?"
    with pytest.raises(BadFileError, match="there is no table `trainer`"):
        reading("model: {}\n", "lightning", "yaml")


@pytest.mark.parametrize(
    ("text", "mine"),
    [
        ('Trainer(precision="bf16-mixed")', True),
        ("pl.Trainer(max_epochs=1)", True),
        ('fabric = Fabric(devices=2); torch.autocast("cuda", torch.float16)', True),
        ('Trainer(plugins=[MixedPrecision("16-mixed", "cuda")])', True),
        ("Trainer(model=model, args=TrainingArguments('out', bf16=True))", False),  # Hugging Face's
        ('Trainer(model=model, precision="amp_bf16")', False),  # Composer's
    ],
)
def test_only_lightning_s_trainer_is_recognised(text: str, mine: bool) -> None:
    settings = settings_of_text(text + "\n", "python")
    assert (SYSTEMS["lightning"].recognises(settings) > 0) is mine
    if mine:
        assert recognise(settings, SYSTEMS.values()).name == "lightning"

# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer, for real: three steps from what was exported, told by tensors; and its traps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.exporters.running import free_port, run_program

from floatwise.errors import BadFileError
from floatwise.exporters import SYSTEMS, export_plan, get_system
from floatwise.exporters.together import load_together
from floatwise.plan import LossScale, recipe

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

TRAIN = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import HfArgumentParser, Trainer, TrainingArguments


def dtype(tensor):
    return str(tensor.dtype).removeprefix("torch.")


class Model(torch.nn.Module):
    def __init__(self, casts=False):
        super().__init__()
        torch.manual_seed(0)
        self.casts = casts  # as an embedding of whole numbers would
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, labels=None):
        x = x.to(self.first.weight.dtype) if self.casts else x
        out = self.last(torch.tanh(self.first(x)))
        return {"loss": (out.float() - labels).square().mean(), "logits": out}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.flip(0)}


OTHERS = dict(output_dir="out", max_steps=3, per_device_train_batch_size=8, report_to=[], save_strategy="no",
              use_cpu=True, disable_tqdm=True, learning_rate=0.01, logging_strategy="no")


def train(arguments, trainer=Trainer, evaluate_first=False):
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    arguments = arguments() if callable(arguments) else TrainingArguments(**{**OTHERS, **arguments})
    model, seen, out = Model(evaluate_first), set(), set()
    for layer in (model.first, model.last):
        layer.register_forward_hook(lambda m, i, o: seen.add(dtype(o)))
    model.register_forward_hook(lambda m, i, o: out.add(dtype(o["logits"])))

    class Watched(trainer):
        def training_step(self, model, inputs, *rest, **named):
            seen_loss = super().training_step(model, inputs, *rest, **named)
            self.gradients = {dtype(p.grad) for p in self.model.parameters() if p.grad is not None}
            return seen_loss

    made = Watched(model=model, args=arguments, train_dataset=Data(), eval_dataset=Data())
    if evaluate_first:
        made.evaluate()
    before = [p.detach().clone() for p in model.parameters()]
    made.train()
    states = {dtype(v) for s in made.optimizer.state.values() for v in s.values() if torch.is_tensor(v)}
    return {
        "linear": sorted(seen), "out": sorted(out), "weights": sorted({dtype(p) for p in model.parameters()}),
        "gradients": sorted(made.gradients), "states": sorted(states),
        "moved": all((a != b).any().item() for a, b in zip(before, model.parameters())),
        "scaler": str(made.accelerator.scaler), "mode": made.accelerator.mixed_precision,
    }


def error(make):
    try:
        make()
    except Exception as caught:
        return f"{type(caught).__name__}: {caught}"
"""

STEPS = (
    TRAIN
    + """
found = {}
for name, text in json.loads(sys.argv[1]).items():
    with open("training_args.json", "w") as file:
        json.dump({**OTHERS, **json.loads(text)}, file)
    found[name] = train(lambda: HfArgumentParser(TrainingArguments).parse_json_file("training_args.json")[0])
found["on cpu"] = train({"fp16": True})
found["without use_cpu"] = train({"fp16": True, "use_cpu": False})
found["evaluated first"] = train({"bf16_full_eval": True}, evaluate_first=True)
os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"
found["launcher fp16, bf16"] = train({"bf16": True})
os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
found["launcher bf16"] = train({})
print(json.dumps(found))
"""
)

TRAPS = (
    TRAIN
    + """
values = {}
exec(sys.argv[1], values)
import transformers.trainer

class Scaled(transformers.trainer.Accelerator):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.scaler = torch.amp.GradScaler("cpu")  # a CPU is given none

transformers.trainer.Accelerator = Scaled
made = values["PlannedTrainer"](model=Model(), args=TrainingArguments(**OTHERS), train_dataset=Data())
state = made.accelerator.scaler.state_dict()
made.accelerator.scaler.scale(torch.ones(1))
print(json.dumps({
    "state": state, "scale": made.accelerator.scaler.get_scale(),
    "both": error(lambda: TrainingArguments(use_cpu=True, fp16=True, bf16=True)),
    "both eval": error(lambda: TrainingArguments(use_cpu=True, fp16_full_eval=True, bf16_full_eval=True)),
    "tf32": error(lambda: TrainingArguments(use_cpu=True, tf32=True)),
    "bf16": error(lambda: TrainingArguments(bf16=True)),
    "text": TrainingArguments(use_cpu=True, fp16="false").mixed_precision,
    "unknown": error(lambda: HfArgumentParser(TrainingArguments).parse_dict({"output_dir": "o", "pf16": True})),
    **{name: error(lambda: TrainingArguments(**{name: "auto"})) for name in
       ("fp16_opt_level", "half_precision_backend", "fp16_backend", "no_cuda", "evaluation_strategy")},
}))
"""
)

DEEPSPEED = (
    TRAIN
    + """
import logging
import deepspeed
from deepspeed.utils import logger

logger.setLevel(logging.ERROR)
for name in list(deepspeed.ops.__compatible_ops__):
    if "shm" in name:  # compiled at the first start, which takes a minute; gloo does as well
        deepspeed.ops.__compatible_ops__[name] = False
found = {}
for name, arguments in json.loads(sys.argv[1]).items():
    engine = {}

    class Engine(Trainer):
        def training_step(self, *rest, **named):
            engine.update(fp16=self.deepspeed.fp16_enabled(), bf16=self.deepspeed.bfloat16_enabled())
            loss = super().training_step(*rest, **named)
            return loss

    try:
        row = train(arguments, Engine)
        found[name] = {key: row[key] for key in ("linear", "weights")} | engine
    except (ValueError, RuntimeError) as caught:
        found[name] = str(caught)
print(json.dumps(found))
"""
)


def test_exported_arguments_train_in_the_formats_of_the_plan(tmp_path: Path) -> None:
    trainer = get_system("transformers")
    texts = {name: export_plan(recipe(name), trainer).text for name in ("fp32", "bf16-mixed", "bf16-master")}
    found: dict[str, Any] = run_program(STEPS, tmp_path, json.dumps(texts))
    float32 = {"weights": ["float32"], "gradients": ["float32"], "states": ["float32"], "out": ["float32"]}
    for name, compute in (
        ("fp32", "float32"),
        ("bf16-mixed", "bfloat16"),
        # The weights stay in float32: what the exporter says it loses.
        ("bf16-master", "bfloat16"),
        # fp16 on a CPU, by use_cpu or because there is nothing else, is float32 without a scaler or a message.
        ("on cpu", "float32"),
        ("without use_cpu", "float32"),
        # Trainer's arguments win over the launcher's, which decide where Trainer has none.
        ("launcher fp16, bf16", "bfloat16"),
        ("launcher bf16", "bfloat16"),
    ):
        row = found[name]
        assert row["linear"] == [compute], name
        assert {key: row[key] for key in float32} == float32, name
        assert row["moved"], name
        assert row["scaler"] == "None", name
    assert found["on cpu"]["mode"] == "fp16"
    # evaluate() with bf16_full_eval before train() leaves weights and gradients in bfloat16.
    assert found["evaluated first"]["weights"] == found["evaluated first"]["gradients"] == ["bfloat16"]


def test_traps_and_the_trainer_subclass_are_as_said(tmp_path: Path) -> None:
    scale = LossScale(initial_scale=1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=7)
    plan = recipe("fp16-mixed", loss_scale=scale)
    source = export_plan(plan, get_system("transformers"), form="python").text
    # No GPU takes fp16 here: the arguments themselves are left to the other tests.
    found = run_program(TRAPS, tmp_path, source.replace("fp16=True", "use_cpu=True"))
    assert found["scale"] == 1024.0
    assert found["state"] | {"_growth_tracker": 0} == {
        "scale": 1024.0,
        "growth_factor": 4.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
        "_growth_tracker": 0,
    }
    assert found["both"] == "ValueError: At most one of fp16 and bf16 can be True, but not both"
    assert found["both eval"].startswith("ValueError: At most one of fp16 and bf16 can be True for full eval")
    assert found["tf32"].startswith("ValueError: --tf32 requires Ampere")
    assert found["bf16"].startswith("ValueError: Your setup doesn't support bf16/gpu")
    assert found["text"] == "fp16"
    assert found["unknown"].startswith("ValueError: Some keys are not used by the HfArgumentParser")
    for name in ("fp16_opt_level", "half_precision_backend", "fp16_backend", "no_cuda", "evaluation_strategy"):
        assert "unexpected keyword argument" in found[name], name


def test_trainer_with_deepspeed_trains_as_the_files_are_read_together(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    zero = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": "auto"}
    cases: dict[str, dict[str, Any]] = {
        "auto": {"bf16": True, "deepspeed": {**zero, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}},
        "absent": {"bf16": True, "deepspeed": zero},
        "auto is false": {"deepspeed": {**zero, "bf16": {"enabled": "auto"}}},
        "full eval": {"bf16_full_eval": True, "deepspeed": {**zero, "bf16": {"enabled": "auto"}}},
        "disagree": {"bf16": True, "deepspeed": {**zero, "bf16": {"enabled": False}}},
        "disagree too": {"deepspeed": {**zero, "bf16": {"enabled": True}}},
    }
    port = str(free_port())
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    found = run_program(
        DEEPSPEED, tmp_path, json.dumps(cases), DS_ACCELERATOR="cpu", ACCELERATE_USE_DEEPSPEED="false", **one
    )
    for name, arguments in cases.items():
        path = tmp_path / "args.json"
        path.write_text(json.dumps({"output_dir": "o", **arguments}), encoding="utf-8")
        if name.startswith("disagree"):
            assert "Please correct the following DeepSpeed config values that mismatch" in found[name]
            with pytest.raises(BadFileError, match="Please correct the following DeepSpeed config values"):
                load_together([path], SYSTEMS)
            continue
        reading = load_together([path], SYSTEMS)[-1][2]
        if name == "absent":
            # Accelerate adds the table after Trainer has looked for it to cast floating inputs.
            assert "mat1 and mat2 must have the same dtype" in found[name]
            assert [finding.code for finding in reading.findings] == ["no-precision-table"]
            continue
        plan = reading.plan
        assert found[name]["weights"] == [plan.policy.param_dtype], name
        assert found[name]["linear"] == [plan.compute_dtype], name
        assert found[name]["bf16"] is (plan.compute_dtype == "bfloat16"), name

# SPDX-License-Identifier: Apache-2.0
"""What is decided for a project, with the reason of every decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from floatwise.hardware import Device
from floatwise.language import Text
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, Weights, recipe
from floatwise.scaffold import reasons as why
from floatwise.scaffold.answers import Answers
from floatwise.scaffold.memory import StateMemory, state_memory
from floatwise.scaffold.sizes import MODEL_SHAPES, ModelShape

__all__ = ["Choices", "choose"]

_CLIP_NORM = 1.0  # the usual norm for transformers: arXiv 2005.14165, appendix B
# NaN at the start comes from too large a first scale only by way of skipped steps; 2**12 saves most of those.
_CAREFUL_SCALE = 2.0**12
_LESS_MEMORY = 4  # how many times smaller a micro-batch becomes when memory is short
# State above this share of the memory leaves too little for activations.
_FULL = 0.8


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a project trains with.

    Attributes:
      plan: The precision.
      shape: Width and depth of the model.
      parameters: Number of its weights.
      micro_batch: Examples per device and forward pass.
      accumulation: Forward passes per device and optimizer step.
      checkpoint_activations: Whether blocks are computed again in backward instead of being kept.
      compile: Whether the model is compiled, on a GPU.
      fused: Whether the optimizer is the fused one.
      channels_last: Whether weights of convolutions get their channels last; images only, and not under FSDP2, which
        shards contiguous weights only (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, 2.13.0).
      clip_norm: Largest norm of all gradients together.
      learning_rate: AdamW's, after warm-up.
      warmup_steps: Optimizer steps over which it rises.
      tf32: Whether float32 products use the TF32 unit.
      memory: Of the state on each device.
      extra_plans: Further plans by file name, for `floatwise run --plan`.
      reasons: One for each decision.
    """

    plan: Plan
    shape: ModelShape
    parameters: int
    micro_batch: int
    accumulation: int
    checkpoint_activations: bool = False
    compile: bool = False
    fused: bool = False
    channels_last: bool = False
    clip_norm: float = _CLIP_NORM
    learning_rate: float
    warmup_steps: int
    tf32: bool = False
    memory: StateMemory
    extra_plans: Mapping[str, Plan] = field(default_factory=dict)
    reasons: tuple[Text, ...]


def choose(answers: Answers) -> Choices:
    """Decides precision, batches and remedies for the answers."""
    device = answers.device_row
    shape = MODEL_SHAPES[answers.task, answers.size]
    plan, plan_reasons = _plan(answers, device)
    reasons = [*plan_reasons]
    is_short, is_slow = answers.trouble == "oom", answers.trouble == "slow"
    micro_batch = max(1, shape.micro_batch // _LESS_MEMORY) if is_short else shape.micro_batch
    accumulation = shape.batch // micro_batch
    learning_rate, warmup = shape.learning_rate, shape.warmup_steps
    if answers.trouble == "nan":
        learning_rate, warmup = learning_rate / 2, warmup * 2
    memory, memory_reasons = _memory(answers, device, shape)
    reasons += memory_reasons
    if is_short:
        reasons += [why.checkpointing(), why.smaller_batch(shape.micro_batch, micro_batch, accumulation, shape.batch)]
    elif accumulation > 1:
        reasons.append(why.accumulation(micro_batch, accumulation, shape.batch))
    extra_plans = _extra_plans(answers, plan) if is_short else {}
    if extra_plans:
        reasons.append(why.master(next(iter(extra_plans.values())).recipe))
    if answers.trouble == "nan":
        reasons += [why.gentle(learning_rate, warmup, _CLIP_NORM), why.find_nan()]
    else:
        reasons.append(why.clipping(_CLIP_NORM))
    if is_slow:
        reasons += why.speed(answers, plan)
    return Choices(
        plan=plan,
        shape=shape,
        parameters=shape.parameters(answers.task),
        micro_batch=micro_batch,
        accumulation=accumulation,
        checkpoint_activations=is_short,
        compile=is_slow,
        fused=is_slow,
        channels_last=is_slow and answers.task == "image" and answers.parallel != "fsdp2",
        learning_rate=learning_rate,
        warmup_steps=warmup,
        tf32=plan.float32_matmul == "tf32",
        memory=memory,
        extra_plans=extra_plans,
        reasons=tuple(reasons),
    )


def _plan(answers: Answers, device: Device) -> tuple[Plan, list[Text]]:
    """Chooses as `floatwise run` does without a plan file: bfloat16 units, else float16 units, else float32."""
    has_tf32 = device.has_matrix("tfloat32")
    matmul = "tf32" if answers.trouble == "slow" and has_tf32 else "ieee"
    common = {"target": device.id, "script": "train.py"}
    if _reliable(device, "bfloat16"):
        reasons = [why.bfloat16(device, is_for_nan=answers.trouble == "nan")]
        return recipe("bf16-mixed", float32_matmul=matmul, **common), reasons
    if _reliable(device, "float16"):
        if answers.trouble != "nan":
            return recipe("fp16-mixed", float32_matmul=matmul, **common), [why.float16(device)]
        plan = recipe(
            "fp16-mixed",
            float32_matmul=matmul,
            modules=(ModulePolicy(module="head", policy=_FLOAT32, reason="logits and the loss overflow first"),),
            loss_scale=LossScale(initial_scale=_CAREFUL_SCALE),
            **common,
        )
        return plan, [why.float16(device), why.islands(device, _CAREFUL_SCALE, answers.row.runs_under_floatwise)]
    return recipe("tf32" if matmul == "tf32" else "fp32", **common), [why.float32(device)]


_FLOAT32 = Policy(param_dtype="float32", compute_dtype="float32", output_dtype="float32")


def _reliable(device: Device, format: str) -> bool:
    return device.has_matrix(format) and format not in device.unreliable


def _memory(answers: Answers, device: Device, shape: ModelShape) -> tuple[StateMemory, list[Text]]:
    parameters = shape.parameters(answers.task)
    is_deepspeed = answers.framework == "deepspeed" or answers.parallel.startswith("zero")
    needed = state_memory(parameters, answers.parallel, answers.gpus, has_deepspeed_copies=is_deepspeed)
    has_gib = min(device.memory_gib, default=None)
    reasons = [why.memory(parameters, needed, has_gib)]
    if has_gib is not None and (needed.total_gib > _FULL * has_gib or answers.trouble == "oom"):
        reasons.append(why.sharding(answers, parameters, has_gib, _FULL))
    return needed, reasons


def _extra_plans(answers: Answers, plan: Plan) -> dict[str, Plan]:
    """Returns the plan with 16-bit weights, where `floatwise run` can apply one."""
    if not answers.row.runs_under_floatwise or answers.parallel.startswith("zero"):
        return {}
    name = {"bfloat16": "bf16-master", "float16": "fp16-master"}.get(plan.compute_dtype)
    if name is None:
        return {}
    # A float32 copy beside float16 weights would take back what they save; 2 bytes of rounding error do not.
    weights = Weights(master="split" if name == "bf16-master" else "kahan")
    master = recipe(
        name,
        target=plan.target,
        script=plan.script,
        float32_matmul=plan.float32_matmul,
        loss_scale=plan.loss_scale,
        weights=weights,
    )
    return {"precision-master.toml": master}

# SPDX-License-Identifier: Apache-2.0
"""TrainingArguments read: what Trainer, and Accelerate beneath it, train in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floatwise.exporters.accelerate_modes import Formats, deepspeed_formats, mode_formats
from floatwise.exporters.grad_scaler import loss_scale_of
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import UNKNOWN, Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.torch_calls import cast_of_model
from floatwise.exporters.transformers import findings as rows
from floatwise.exporters.transformers.knobs import CALLS, KNOBS, OTHERS, SCALER, misspelled
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.dtypes import SIXTEEN_BIT_FORMATS
from floatwise.plan.model import Reductions
from floatwise.plan.problems import Loc, Problem

__all__ = ["read", "recognises"]

# What a script calls in which adapters train and the loaded weights do not (huggingface/peft, bitsandbytes).
_PEFT = ("get_peft_model", "LoraConfig", "prepare_model_for_kbit_training", "BitsAndBytesConfig", "add_adapter")

# Without a version in fsdp_config, Trainer takes FSDP1 in 5.0.0 and FSDP2 in 5.12.0; between them none was read.
_FSDP2_SINCE = "5.12"


@dataclass(frozen=True)
class _Arguments:
    """The arguments by name, and where they stand.

    Attributes:
      values: By name.
      loc: The table or call they are in.
      open: True when there are more that only running would tell.
    """

    values: Mapping[str, Any]
    loc: Loc
    open: bool = False

    def on(self, name: str) -> bool:
        """Returns whether an argument is true; not so where only running would tell."""
        return self.values.get(name) is True

    def at(self, name: str) -> Loc:
        return (*self.loc, name)


def read(settings: Settings, version: Version) -> Reading:
    """Returns the plan that Trainer trains with these arguments.

    Raises:
      SettingsProblems: Arguments contradict each other, or there are none.
    """
    arguments = _arguments(settings)
    problems = list(_contradictions(arguments))
    if settings.form != "python":
        problems += _misspelled(settings)
    if problems:
        raise SettingsProblems(problems)
    formats = _loaded_in(settings, arguments, _formats(arguments, version))
    scaler = settings.call(SCALER)
    if formats.compute_dtype == "float16" and scaler is not None and formats.param_dtype == "float32":
        formats = Formats(**{**formats.arguments(), "loss_scale": loss_scale_of(scaler)})
    return nearest_plan(
        **formats.arguments(),
        float32_matmul=_float32_matmul(arguments),
        findings=_findings(settings, arguments),
        loc=_deciding(arguments),
    )


def recognises(settings: Settings) -> float:
    """Returns how surely settings are TrainingArguments."""
    if settings.form == "python":
        return 0.9 if any(settings.call(name) for name in CALLS) else 0.0
    if any(isinstance(settings.get(key), Mapping) for key in ("fp16", "bf16", "zero_optimization")):
        return 0.0
    known = sum(key in KNOBS or key in OTHERS for key in settings.values)
    return 0.0 if not known else min(0.9, 0.3 + 0.1 * known + (0.3 if settings.has("output_dir") else 0.0))


def _arguments(settings: Settings) -> _Arguments:
    if settings.form != "python":
        return _Arguments(settings.values, ())
    call = next((call for name in CALLS if (call := settings.call(name))), None)
    if call is None:
        raise SettingsProblems([Problem((), "there is no call of TrainingArguments(...) in this source")])
    return _Arguments(call.kwargs, (call.name,), call.open)


def _contradictions(arguments: _Arguments) -> Iterator[Problem]:
    given = arguments.values.get("deepspeed")
    if given is not None and (isinstance(given, bool | int | float | list) or given == {}):
        yield Problem(arguments.at("deepspeed"), f"got {given!r}, expected the path of a DeepSpeed file, or its table")
    if arguments.on("fp16") and arguments.on("bf16"):
        yield Problem(
            arguments.at("bf16"),
            "got fp16 and bf16 both true, and Trainer ends with ValueError: At most one of fp16 and bf16 can be True; "
            "keep one: bf16 on GPUs that have it (NVIDIA Ampere or newer)",
        )
    if arguments.on("fp16_full_eval") and arguments.on("bf16_full_eval"):
        yield Problem(
            arguments.at("bf16_full_eval"),
            "got fp16_full_eval and bf16_full_eval both true, and Trainer ends with ValueError; keep one",
        )


def _misspelled(settings: Settings) -> Iterator[Problem]:
    unknown = [key for key in settings.values if key not in KNOBS and key not in OTHERS]
    for key, meant in misspelled(unknown).items():
        yield Problem((key,), f"TrainingArguments has no such argument; did you mean {meant!r}?")


def _formats(arguments: _Arguments, version: Version) -> Formats:
    mode = "fp16" if arguments.on("fp16") else "bf16" if arguments.on("bf16") else "no"
    if arguments.values.get("deepspeed"):
        return deepspeed_formats(mode)
    return mode_formats(mode, _fsdp(arguments, version), float32=_on_cpu(arguments))


def _loaded_in(settings: Settings, arguments: _Arguments, formats: Formats) -> Formats:
    """Returns the formats with weights as `from_pretrained(dtype=…)` loads them, which Trainer leaves so.

    DeepSpeed and FSDP make float32 of them for the optimizer; under PEFT they do not train
    (accelerate/accelerator.py `prepare_model`, 1.15.0).
    """
    cast = cast_of_model(settings) if settings.form == "python" else None
    sharded = arguments.values.get("deepspeed") or arguments.values.get("fsdp")
    frozen = any(settings.call(name) for name in _PEFT) or any("peft_config" in c.kwargs for c in settings.calls)
    if cast is None or cast.dtype not in SIXTEEN_BIT_FORMATS or sharded or frozen:
        return formats
    low = cast.dtype
    compute = low if formats.compute_dtype == "float32" else formats.compute_dtype
    output = low if formats.compute_dtype == "float32" else formats.output_dtype
    sums = Reductions(reduce_dtype=low, accumulate_dtype=low, buffer_dtype=low)
    arguments_of = {"compute_dtype": compute, "output_dtype": output, "reductions": sums, "param_dtype": low}
    return Formats(**{**formats.arguments(), **arguments_of})


def _fsdp(arguments: _Arguments, version: Version) -> int:
    """Returns the version of FSDP that shards the model; 0 for none."""
    if not arguments.values.get("fsdp"):
        return 0
    config = arguments.values.get("fsdp_config")
    given = [config.get(key) for key in ("version", "fsdp_version")] if isinstance(config, Mapping) else []
    default = 2 if version.within(_FSDP2_SINCE, "") else 1
    return 1 if str(next((value for value in given if value), default)) == "1" else 2


def _on_cpu(arguments: _Arguments) -> bool:
    return arguments.on("use_cpu") or arguments.on("no_cuda")


def _float32_matmul(arguments: _Arguments) -> Literal["ieee", "tf32"]:
    given = arguments.values.get("tf32")
    compiled = arguments.on("torch_compile") or any(
        arguments.values.get(name) for name in ("torch_compile_backend", "torch_compile_mode")
    )
    # training_args.py, 5.24.0: with torch_compile, `tf32 is None and not fp16 or bf16` turns it on first.
    return "tf32" if given is True or (given is None and compiled and not arguments.on("fp16")) else "ieee"


def _deciding(arguments: _Arguments) -> Loc:
    name = next((n for n in ("deepspeed", "fsdp") if arguments.values.get(n)), None)
    name = next((n for n in ("fp16", "bf16") if arguments.on(n)), name)
    return arguments.at(name) if name else arguments.loc


def _findings(settings: Settings, arguments: _Arguments) -> Iterator[Finding]:
    if _on_cpu(arguments) and arguments.on("fp16") and not arguments.values.get("deepspeed"):
        yield Finding("float16-on-cpu", arguments.at("fp16"), *rows.FLOAT16_ON_CPU)
    for name in ("fp16_full_eval", "bf16_full_eval"):
        if arguments.on(name) and not arguments.values.get("deepspeed"):
            yield Finding("full-eval-casts-weights", arguments.at(name), *rows.FULL_EVAL)
    for name in ("half_precision_backend", "fp16_backend"):
        if arguments.values.get(name) == "apex":
            yield Finding("apex", arguments.at(name), *rows.APEX)
    for name in ("fp16", "bf16"):
        if not isinstance(arguments.values.get(name, UNKNOWN if arguments.open else False), bool):
            yield Finding("known-only-when-run", arguments.at(name), *rows.KNOWN_WHEN_RUN)
    if settings.form != "python":
        foreign = [key for key in settings.values if key not in KNOBS and key not in OTHERS]
        if foreign:
            what, do = rows.FOREIGN_KEY
            words = {"keys": ", ".join(foreign)}
            what = Text(what.en.format(**words), what.zh.format(**words))
            yield Finding("not-of-training-arguments", (foreign[0],), what, do)

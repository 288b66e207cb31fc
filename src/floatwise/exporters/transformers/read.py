# SPDX-License-Identifier: Apache-2.0
"""TrainingArguments read: what Trainer, and Accelerate beneath it, train in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floatwise.exporters.accelerate_modes import Formats, deepspeed_formats, mode_formats
from floatwise.exporters.grad_scaler import loss_scale_of
from floatwise.exporters.nearest import nearest_plan
from floatwise.exporters.settings import Settings, SettingsProblems
from floatwise.exporters.system import Finding, Reading
from floatwise.exporters.transformers import findings as rows
from floatwise.exporters.transformers.knobs import CALLS, KNOBS, OTHERS, SCALER, misspelled
from floatwise.exporters.version import Version
from floatwise.plan.problems import Loc, Problem

__all__ = ["read", "recognises"]

# Without a version in fsdp_config, Trainer takes FSDP1 in 5.0.0 and FSDP2 in 5.12.0; between them none was read.
_FSDP2_SINCE = "5.12"


@dataclass(frozen=True)
class _Arguments:
    """The arguments by name, and where they stand.

    Attributes:
      values: By name.
      loc: The table or call they are in.
    """

    values: Mapping[str, Any]
    loc: Loc

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
    formats = _formats(arguments, version)
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
    return _Arguments(call.kwargs, (call.name,))


def _contradictions(arguments: _Arguments) -> Iterator[Problem]:
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
        if not isinstance(arguments.values.get(name, False), bool):
            yield Finding("known-only-when-run", arguments.at(name), *rows.KNOWN_WHEN_RUN)
    if settings.form != "python":
        for key in settings.values:
            if key not in KNOBS and key not in OTHERS:
                yield Finding("not-of-training-arguments", (key,), *rows.FOREIGN_KEY)

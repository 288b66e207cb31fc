# SPDX-License-Identifier: Apache-2.0
"""Accelerate: its file and its Python plugins, what is read of them, and what is refused, with its line."""

from __future__ import annotations

from typing import Any

import pytest

from floatwise.errors import BadFileError, PlanError
from floatwise.exporters import export_plan, get_system, recognise
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.system import Reading
from floatwise.exporters.systems import SYSTEMS
from floatwise.exporters.version import Version
from floatwise.plan import LossScale, Plan, Reductions, recipe

ACCELERATE = get_system("accelerate")


def read(text: str, form: str = "yaml", version: str = "1.15.0") -> Reading:
    return read_settings(settings_of_text(text, form, "acc"), ACCELERATE, Version.of(version))


def export(plan: Plan, form: str = "yaml", version: str = "1.15.0", **options: Any) -> Any:
    return export_plan(plan, ACCELERATE, version=version, form=form, options=options)


HEAD = "compute_environment: LOCAL_MACHINE\ndistributed_type: "


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("fp32", {}, HEAD + "'NO'\nmixed_precision: 'no'\n"),
        ("bf16-mixed", {}, HEAD + "'NO'\nmixed_precision: bf16\n"),
        ("fp16-mixed", {"fsdp": 2}, HEAD + "FSDP\nmixed_precision: fp16\nfsdp_config:\n  fsdp_version: 2\n"),
        ("fp8-tensorwise", {}, HEAD + "'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: AO\n"),
        (
            "fp8-tensorwise",
            {"fsdp": 2},
            HEAD + "FSDP\nmixed_precision: fp8\nfsdp_config:\n  fsdp_version: 2\n"
            "  fsdp_cpu_ram_efficient_loading: false\nfp8_config:\n  backend: AO\n",
        ),
        (
            "mxfp8",
            {"fp8_backend": "TE"},
            HEAD + "'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n  use_mxfp8_block_scaling: true\n",
        ),
    ],
)
def test_files_are_written(name: str, options: dict[str, Any], text: str) -> None:
    assert export(recipe(name), **options).text == text


def test_the_policy_of_fsdp2_keeps_float32_sums_and_outputs() -> None:
    exported = export(recipe("bf16-mixed"), "python", fsdp=2)
    assert exported.text == (
        "import torch\n"
        "from accelerate import Accelerator\n"
        "from accelerate.utils import FullyShardedDataParallelPlugin\n\n"
        "ACCELERATOR = Accelerator(\n"
        '    mixed_precision="bf16",\n'
        "    fsdp_plugin=FullyShardedDataParallelPlugin(\n"
        "        fsdp_version=2,\n"
        '        mixed_precision_policy={"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32, '
        '"output_dtype": torch.float32},\n'
        "    ),\n"
        ")\n"
    )
    assert not [note for note in exported.notes if note.fields]


def test_the_file_cannot_keep_them_and_says_so() -> None:
    exported = export(recipe("bf16-mixed"), fsdp=2)
    lost = {path: note for note in exported.notes for path in note.fields}
    assert set(lost) == {"policy.output_dtype", "reductions.reduce_dtype", "reductions.accumulate_dtype"}
    assert "--form python" in lost["reductions.reduce_dtype"].instead.en
    assert exported.reading.plan.reductions.reduce_dtype == "bfloat16"


def test_loss_scale_and_communication_hook_are_handlers() -> None:
    plan = recipe(
        "fp16-mixed",
        loss_scale=LossScale(initial_scale=256.0),
        reductions=Reductions(reduce_dtype="float16"),
        float32_matmul="tf32",
    )
    assert export(plan, "python").text == (
        "import torch\n"
        "from accelerate import Accelerator\n"
        "from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs, GradScalerKwargs\n\n"
        'torch.set_float32_matmul_precision("high")\n'
        "ACCELERATOR = Accelerator(\n"
        '    mixed_precision="fp16",\n'
        "    kwargs_handlers=[\n"
        "        GradScalerKwargs(\n"
        "            init_scale=256.0,\n"
        "            growth_factor=2.0,\n"
        "            backoff_factor=0.5,\n"
        "            growth_interval=2000,\n"
        "        ),\n"
        "        DistributedDataParallelKwargs(\n"
        "            comm_hook=DDPCommunicationHookType.FP16,\n"
        "        ),\n"
        "    ],\n"
        ")\n"
    )


@pytest.mark.parametrize("name", ["fp8-tensorwise", "fp8-rowwise", "fp8-rowwise-gw-hp"])
def test_torchao_recipes_are_kept_in_python(name: str) -> None:
    exported = export(recipe(name), "python")
    assert exported.reading.plan == recipe(name)
    if name != "fp8-tensorwise":
        assert f'Float8LinearConfig.from_recipe_name("{recipe(name).scaling}")' in exported.text
        assert {"scaling", "recipe"} <= {path for note in export(recipe(name)).notes for path in note.fields}


@pytest.mark.parametrize(
    ("version", "has"), [("1.15.0", True), ("1.13.0", True), ("1.12.0", False)], ids=lambda value: str(value)
)
def test_fsdp1_does_not_gather_in_float8(version: str, has: bool) -> None:
    text = export(recipe("fp8-tensorwise"), "python", version, fsdp=1).text
    assert ("enable_fsdp_float8_all_gather=False" in text) is has


@pytest.mark.parametrize(
    ("plan", "arguments", "words"),
    [
        (
            recipe("bf16-mixed", reductions=Reductions(reduce_dtype="float16"), loss_scale=LossScale()),
            {},
            "scales the loss with mixed_precision fp16 only",
        ),
        (recipe("mxfp8"), {}, "not per 32 elements"),
        (recipe("mxfp8"), {"fp8_backend": "TE", "version": "1.10.0"}, "cannot ask TransformerEngine for MXFP8"),
        (recipe("fp8-tensorwise"), {"version": "1.8.0"}, "does not read fp8_config's backend"),
    ],
)
def test_plans_that_it_cannot_train_are_refused(plan: Plan, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        export(plan, **arguments)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "distributed_type: 'NO'\nmixed_precision: no\n",
            "acc:2: mixed_precision: got false, which is how YAML reads an unquoted no; `accelerate launch` then ends "
            "with AttributeError: 'bool' object has no attribute 'lower': write it in quotes, \"no\"",
        ),
        ("mixed_precision: bf16\ndistributed_type: NO\n", "acc:2: distributed_type: got false"),
        (
            "distributed_type: 'NO'\nmixed_precison: bf16\n",
            "acc:2: mixed_precison: Accelerate knows no such key; did you mean 'mixed_precision'",
        ),
        ("distributed_type: 'NO'\nmixed_precision: bfloat16\n", 'got "bfloat16", expected "no" or "fp16"'),
        ("distributed_type: 'NO'\nfp8_config:\n  backnd: AO\n", "acc:3: fp8_config.backnd"),
        (
            "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: ao\n",
            'acc:4: fp8_config.backend: got "ao"',
        ),
        ("distributed_type: 'NO'\nipex_config: {a: 1}\n", ""),
        ("distributed_type: 'NO'\nfp8_config:\n  format: E5M2\n", "acc:3: fp8_config.format"),
    ],
)
def test_bad_files_are_named_with_their_line(text: str, line: str) -> None:
    if not line:
        read(text, version="1.12.0")
        return
    with pytest.raises(BadFileError) as error:
        read(text)
    assert line in str(error.value)


PLUGIN = "Accelerator(mixed_precision='bf16', fsdp_plugin=FullyShardedDataParallelPlugin(\n    fsdp_version={},\n    mixed_precision_policy={}))"  # noqa: E501


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            PLUGIN.format(2, '{"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}'),
            "acc:3: FullyShardedDataParallelPlugin.mixed_precision_policy: got a policy without output_dtype",
        ),
        (
            PLUGIN.format(1, '{"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}'),
            "got a policy without buffer_dtype",
        ),
        (PLUGIN.format(2, "MixedPrecision(param_dtype=torch.bfloat16)"), "expected MixedPrecisionPolicy"),
        (PLUGIN.format(2, '"bfloat16"'), 'got "bfloat16", expected fp8 or fp16 or bf16 or fp32'),
        ("Accelerator(mixed_precison='bf16')", "acc:1: Accelerator.mixed_precison"),
        ("Accelerator(mixed_precision='half')", 'got "half", expected "no" or "fp16"'),
        ("GradScalerKwargs(growth_factor=1.0)\nAccelerator()", "acc:1: GradScalerKwargs.growth_factor"),
        ("print()", "acc:1: there is no call of Accelerator"),
    ],
)
def test_bad_source_is_named_with_its_line(source: str, line: str) -> None:
    with pytest.raises(BadFileError) as error:
        read(source, "python")
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("text", "form", "compute", "codes"),
    [
        ("distributed_type: 'NO'\nmixed_precision: fp16\nuse_cpu: true\n", "yaml", "float32", ["float16-on-cpu"]),
        ("distributed_type: 'NO'\nfp16: true\n", "yaml", "float16", []),
        ("distributed_type: 'NO'\nmixed_precision: BF16\n", "yaml", "bfloat16", []),
        (
            "distributed_type: 'NO'\nmixed_precision: bf16\nfp8_config:\n  backend: AO\n",
            "yaml",
            "bfloat16",
            ["idle-fp8-config"],
        ),
        ("distributed_type: XLA\nmixed_precision: bf16\ndowncast_bf16: 'yes'\n", "yaml", "bfloat16", ["downcast-bf16"]),
        ("distributed_type: XLA\nmixed_precision: bf16\ndowncast_bf16: 'no'\n", "yaml", "bfloat16", []),
        (
            "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n  backend: MSAMP\n",
            "yaml",
            "float8_e4m3fn",
            ["ms-amp"],
        ),
        ("Accelerator(mixed_precision='fp16', cpu=True)", "python", "float32", ["float16-on-cpu"]),
        ("Accelerator()", "python", "float32", ["set-by-launcher"]),
        ("Accelerator(mixed_precision=args.mixed_precision)", "python", "float32", ["set-by-launcher"]),
        (
            "Accelerator(mixed_precision='bf16', kwargs_handlers=[AutocastKwargs(enabled=False)])",
            "python",
            "float32",
            ["autocast-off"],
        ),
        (
            PLUGIN.format(2, '"bf16"').replace("'bf16'", "'no'", 1),
            "python",
            "bfloat16",
            ["policy-without-mixed-precision"],
        ),
        (
            PLUGIN.format(2, '"bf16"').replace("'bf16'", "'fp16'", 1),
            "python",
            "bfloat16",
            ["two-precisions", "idle-loss-scale"],
        ),
    ],
)
def test_what_is_trained_and_what_is_dangerous(text: str, form: str, compute: str, codes: list[str]) -> None:
    reading = read(text, form)
    assert reading.plan.compute_dtype == compute
    assert [finding.code for finding in reading.findings] == codes


def test_a_scaler_that_is_switched_off_is_found() -> None:
    reading = read("Accelerator(mixed_precision='fp16', kwargs_handlers=[GradScalerKwargs(enabled=False)])", "python")
    assert [finding.code for finding in reading.findings] == ["no-loss-scale"]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\n", "yaml"),
        ("accelerator = Accelerator(mixed_precision='fp16')", "python"),
    ],
)
def test_it_is_recognised(text: str, form: str) -> None:
    assert recognise(settings_of_text(text, form), SYSTEMS.values()) is ACCELERATE


def test_ipex_is_gone_since_1_13() -> None:
    with pytest.raises(BadFileError, match=r"acc:2: ipex_config: .* before 1\.13 only"):
        read("distributed_type: 'NO'\nipex_config: yes\n")

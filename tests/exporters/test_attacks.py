# SPDX-License-Identifier: Apache-2.0
"""Files that were written to break the reader, and scripts as people write them: a verdict with its line."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from floatwise.cli.app import run
from floatwise.errors import BadFileError, BadInputError
from floatwise.exporters import SYSTEMS, export_plan, get_system, load_settings, load_together
from floatwise.exporters.forms import FORMS
from floatwise.exporters.forms.parsed import FormError
from floatwise.exporters.merge import has_comments, merged_text
from floatwise.exporters.settings import UNKNOWN, Settings
from floatwise.exporters.version import Version
from floatwise.plan import Plan, recipe

ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = [
    ("json", '{"a":' * 300 + "1" + "}" * 300, 1, "nested deeper than 100"),
    ("json", '{\n"a": "NaN",\n"b": NaN}', 3, "got NaN"),
    ("json", '{\n"a": ' + "9" * 5000 + "}", 2, "a number of 5000 digits"),
    ("yaml", "b: 1\na: &a [*a]", 2, "within itself"),
    ("yaml", "b: 1\na: &a {b: *a}", 2, "within itself"),
    ("yaml", ALIASES, 1, "its aliases come to more than"),
    ("yaml", "b: 1\n? [a, b]\n: c", 2, "got a list or table as a key"),
    ("yaml", "b: 1\na: \x01", 2, "the character #x0001"),
]


@pytest.mark.parametrize(("form", "text", "line", "what"), HOSTILE)
def test_a_hostile_file_is_refused_with_its_line(form: str, text: str, line: int, what: str) -> None:
    with pytest.raises(FormError) as caught:
        FORMS[form].parse(text)
    assert caught.value.line == line
    assert what in caught.value.what


def test_keys_of_yaml_that_are_no_texts_have_their_line_and_stay_as_they_are() -> None:
    parsed = FORMS["yaml"].parse("a: 0\n5: x\nnull: y\nyes: z\n2020-01-02: d\n")
    assert list(parsed.values) == ["a", "5", "null", "true", "2020-01-02"]
    assert [parsed.lines[(key,)] for key in parsed.values] == [1, 2, 3, 4, 5]
    assert parsed.content is not None
    assert list(parsed.content)[1:4] == [5, None, True]


def test_arithmetic_and_constants_of_a_script_do_not_run_away() -> None:
    doubled = "".join(f"a{i + 1} = {{'x': a{i}, 'y': a{i}}}\n" for i in range(40))
    values = FORMS["python"].parse(f"a0 = {{'x': 1}}\n{doubled}b = ((9**1000)**1000)**1000\nc = (-8)**0.5").values
    assert values["a5"]["x"]["y"]["x"] is not UNKNOWN
    assert sum(1 for _ in Settings(values).leaves()) < 10**6
    assert [values[name] for name in ("b", "c")] == [UNKNOWN] * 2


def test_a_script_that_python_warns_of_is_read_in_silence() -> None:
    assert FORMS["python"].parse("a = '\\d'\nb = 5\nif b is 1or 2: pass").values["b"] == 5


def test_a_long_file_is_read_in_time_that_grows_with_its_length() -> None:
    text = json.dumps({f"k{i}": i for i in range(100_000)}, indent=0)
    assert FORMS["json"].parse(text).lines[("k99999",)] == 100_001


def _read(tmp_path: Path, name: str, text: str) -> Plan:
    (tmp_path / name).write_text(text)
    return load_together([tmp_path / name], SYSTEMS)[-1][2].plan


def _findings(tmp_path: Path, name: str, text: str) -> list[str]:
    (tmp_path / name).write_text(text)
    return [finding.code for finding in load_together([tmp_path / name], SYSTEMS)[-1][2].findings]


BAD_VALUES = [
    ("a.json", '{"zero_optimization": {"stage": 1}, "gradient_clipping": ' + "9" * 400 + "}", "expected a number"),
    ("a.json", '{"output_dir": "x", "bf16": true, "deepspeed": "' + "a/" * 3000 + '"}', "names the DeepSpeed file"),
    ("a.yaml", "compute_environment: x\nmixed_precision: bf16\nnull: 1\n", "a.yaml:3: null: Accelerate knows no such"),
    ("a.yaml", 'mixed_precision: "\\e[31mbf17"\n', 'got "\\u001b[31mbf17"'),
    ("a.sh", "--micro-batch-size 1 --loss-scale \x1b[31mX", 'got "\\u001b[31mX"'),
    ("a.json", '{"bf16": {"\u202e\x7f": 1}}', "\\u202e"),
    ("a.yaml", "compute_environment: x\nmixed_precision: bf16\nnum_proceses: 8\n", "did you mean 'num_processes'"),
    ("a.py", "from torch.amp import GradScaler\nx = GradScaler('cuda', " + "9" * 400 + ")", "initial_scale"),
    (
        "a.py",
        "def f(d):\n    return MixedPrecisionPolicy(param_dtype=d)",
        "a.py:2: MixedPrecisionPolicy.param_dtype: got d,",
    ),
]


@pytest.mark.parametrize(("name", "text", "what"), BAD_VALUES)
def test_a_value_of_any_kind_is_told_harmlessly(tmp_path: Path, name: str, text: str, what: str) -> None:
    with pytest.raises(BadFileError) as caught:
        _read(tmp_path, name, text)
    message = str(caught.value)
    assert what in message
    assert all(c.isprintable() or c == "\n" for c in message)


def test_names_of_calls_are_not_offered_as_keys_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        _read(tmp_path, "a.yaml", "compute_environment: x\nmixed_precision: bf16\nqqqq: 8\n")
    assert "Accelerator" not in str(caught.value)


@pytest.mark.parametrize("value", ["1", "x", "[1]", "true"])
def test_an_fsdp_config_that_is_no_table_is_read_as_none(tmp_path: Path, value: str) -> None:
    text = f"distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {value}\n"
    assert _read(tmp_path, "a.yaml", text).compute_dtype == "bfloat16"


SPELLINGS = [
    "class A:\n    def __init__(self):\n        self.d = torch.bfloat16\n"
    "    def f(self):\n        with torch.autocast('cuda', dtype=self.d): pass",
    "from torch.cuda.amp import autocast\nwith autocast(dtype=torch.bfloat16): pass",
    "from torch.cuda import amp\nwith amp.autocast(True, torch.bfloat16): pass",
    "import torch as th\nfrom torch.amp.autocast_mode import autocast as ac\nwith ac('cuda', th.bfloat16): pass",
    "from torch import autocast, bfloat16\nwith autocast('cuda', dtype=bfloat16): pass",
    "from functools import partial\nac = partial(torch.autocast, 'cuda', dtype=torch.bfloat16)\nwith ac(): pass",
    "KW = dict(device_type='cuda', dtype=torch.bfloat16)\nwith torch.autocast(**KW): pass",
    "KW = {'dtype': torch.bfloat16}\nwith torch.autocast('cuda', **KW): pass",
    "C = {'d': torch.bfloat16}\nwith torch.autocast('cuda', dtype=C['d']): pass",
    "with torch.autocast('cuda', dtype=getattr(torch, 'bfloat16')): pass",
    "d = torch.float16\ndef f():\n    d = torch.bfloat16\n    with torch.autocast('cuda', dtype=d): pass",
    "class A:\n    @torch.autocast('cuda', dtype=torch.bfloat16)\n    def forward(self): pass",
    "try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast\n"
    "with autocast('cuda', dtype=torch.bfloat16): pass",
]


@pytest.mark.parametrize("source", SPELLINGS)
def test_autocast_is_understood_in_every_spelling(tmp_path: Path, source: str) -> None:
    assert _read(tmp_path, "a.py", f"import torch\n{source}\n").compute_dtype == "bfloat16"


UNKNOWABLE = [
    "match m:\n    case 1: d = torch.float16\n    case d: pass\nwith torch.autocast('cuda', dtype=d): pass",
    "class A:\n    def f(self):\n        self.d = torch.float16\n        self.d = g()\n"
    "        with torch.autocast('cuda', dtype=self.d): pass",
    "def f(d):\n    with torch.autocast('cuda', dtype=d): pass",
    "d = torch.float16\ndef f(d):\n    with torch.autocast('cuda', dtype=d): pass",
    "d = torch.float16\nd = torch.bfloat16\nwith torch.autocast('cuda', dtype=d): pass",
    "for d in x:\n    with torch.autocast('cuda', dtype=d): pass",
    "d = torch.float16\ndef g():\n    global d\n    d = 1\nwith torch.autocast('cuda', dtype=d): pass",
]


@pytest.mark.parametrize("source", UNKNOWABLE)
def test_a_format_that_only_running_tells_is_not_guessed(tmp_path: Path, source: str) -> None:
    with pytest.raises(BadFileError, match="known only when the script runs"):
        _read(tmp_path, "a.py", f"import torch\n{source}\n")


MEGATRON = [
    'ARGS="\n  --micro-batch-size 1 \\\n  --bf16\n"\ntorchrun x.py $ARGS\n',
    "ARGS=(--micro-batch-size 1 --bf16)\n",
    'ARGS="--micro-batch-size 1"\nARGS+=" --bf16"\npython x.py ${ARGS} --lr ${LR}\n',
    "cat <<EOF > notes\nit's\nEOF\npython x.py --micro-batch-size 1 --bf16\n",
    "srun bash -c 'torchrun x.py --micro-batch-size 1 \\\n  --bf16' # don't\n",
    'if [ -n $X ]; then A=" --bf16"; fi; run --micro-batch-size=1\r\n',
]


@pytest.mark.parametrize("script", MEGATRON)
def test_flags_are_found_wherever_a_launch_script_keeps_them(tmp_path: Path, script: str) -> None:
    plan = _read(tmp_path, "a.sh", script)
    assert (plan.recipe, plan.loss_scale) == ("bf16-master", None)


def test_flags_within_a_quotation_have_the_lines_of_the_file() -> None:
    lines = FORMS["flags"].parse("# x\nA=\"\n  --bf16 \\\n  --lr 1\n\" --b '\n'\n--c").lines
    assert lines == {("bf16",): 3, ("lr",): 4, ("b",): 5, ("c",): 7}


OTHERS = [
    ("a.sh", "accelerate launch --mixed_precision='bf16' train.py --output_dir x --learning_rate 1", "bfloat16", []),
    ("a.sh", "torchrun train.py --output_dir x --bf16 True --learning_rate 1", "bfloat16", []),
    ("a.sh", "torchrun train.py --output_dir x --bf16 False --learning_rate $LR", "float32", []),
    ("a.py", "c = dict(bf16=True)\na = TrainingArguments(**c)", "bfloat16", []),
    ("a.py", "a = TrainingArguments(**c)", "float32", ["known-only-when-run"] * 2),
    ("a.py", "a = Accelerator(True, False, 'bf16')", "bfloat16", []),
    ("a.py", "a = Accelerator(mixed_precision=PrecisionType.BF16)", "bfloat16", []),
    ("a.py", "import keras\nkeras.backend.set_floatx('bfloat16')", "bfloat16", ["pure-16-bit"]),
    ("a.py", "from lightning.pytorch import Trainer\nTrainer(max_epochs=1)", "float32", []),
    (
        "a.py",
        "m = M.from_pretrained('x', torch_dtype=torch.bfloat16)\na = TrainingArguments(bf16=True)",
        "bfloat16",
        ["pure-16-bit"],
    ),
    (
        "a.py",
        "m = M.from_pretrained('x', dtype='bfloat16')\nm = get_peft_model(m, c)\na = TrainingArguments(bf16=True)",
        "bfloat16",
        [],
    ),
    (
        "a.py",
        "from jax import numpy as jnp\n"
        "p = jmp.Policy(jnp.float32, compute_dtype=jnp.bfloat16, output_dtype=jnp.float32)\n"
        "hk.mixed_precision.set_policy(Net, p)",
        "bfloat16",
        ["matmul-by-device"],
    ),
]


@pytest.mark.parametrize(("name", "text", "dtype", "codes"), OTHERS)
def test_what_people_write_means_what_the_system_does(
    tmp_path: Path, name: str, text: str, dtype: str, codes: list[str]
) -> None:
    assert _read(tmp_path, name, text).compute_dtype == dtype
    assert _findings(tmp_path, name, text) == codes


def test_arguments_of_the_script_itself_are_told_once(tmp_path: Path) -> None:
    text = "output_dir: x\nbf16: true\nmodel_name_or_path: m\nstage: sft\ntemplate: llama3\n"
    assert _findings(tmp_path, "a.yaml", text) == ["not-of-training-arguments"]


@pytest.mark.parametrize("value", ["5", "[1]", "true", "{}"])
def test_a_deepspeed_argument_that_is_no_file_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(BadFileError, match="expected the path of a DeepSpeed file"):
        _read(tmp_path, "a.json", f'{{"output_dir": "x", "bf16": true, "deepspeed": {value}}}')


def test_a_deepspeed_plugin_stores_weights_in_16_bits(tmp_path: Path) -> None:
    plan = _read(
        tmp_path, "a.py", "a = Accelerator(mixed_precision='fp16', deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))"
    )
    assert (plan.policy.param_dtype, plan.weights.master) == ("float16", "float32")


ACCELERATE = [
    ("distributed_type: MEGATRON_LM\nmixed_precision: bf16\n", ["megatron-decides"]),
    ("mixed_precision: fp8\nfp8_config: {backend: TE, amax_history_length: 16}\n", ["idle-amax-key"]),
]


@pytest.mark.parametrize(("text", "codes"), ACCELERATE)
def test_what_accelerate_takes_and_does_not_do_is_found(tmp_path: Path, text: str, codes: list[str]) -> None:
    assert _findings(tmp_path, "a.yaml", f"compute_environment: LOCAL_MACHINE\n{text}") == codes


def test_a_deepspeed_configuration_that_only_running_tells_is_found(tmp_path: Path) -> None:
    text = "a = Accelerator(mixed_precision='bf16', deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=args.file))"
    assert _findings(tmp_path, "a.py", text) == ["deepspeed-unread"]


def test_a_file_of_another_form_than_the_named_system_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(BadFileError, match="got json; Keras is configured in python"):
        load_together([tmp_path / "a.json"], SYSTEMS, from_system="keras")


def test_a_plan_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("# Floatwise precision plan\n")
    with pytest.raises(BadFileError, match="this is a plan of Floatwise"):
        load_settings(tmp_path / "p.toml")


@pytest.mark.parametrize("text", ["9" * 5000, "0.19.8; rm", "0.19.8\n1", "１.２", "1.2 3", ""])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="write its numbers"):
        Version.of(text)


def _merged(tmp_path: Path, system: str, name: str, text: str, form: str | None = None) -> str:
    (tmp_path / name).write_text(text)
    owner = get_system(system)
    return merged_text(tmp_path / name, export_plan(recipe("bf16-master"), owner, form=form), owner)


def test_a_launch_script_is_not_replaced_by_its_flags(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"a\.sh:2: got 'torchrun', which is no flag"):
        _merged(tmp_path, "megatron", "a.sh", "#!/bin/bash\ntorchrun x.py --micro-batch-size 1\n")
    assert "--lr 1\n--bf16\n" in _merged(tmp_path, "megatron", "a.args", "# mine\n--lr 1\n")


def test_the_trainer_table_of_lightning_keeps_what_is_no_precision(tmp_path: Path) -> None:
    text = (
        "trainer:\n  max_epochs: 3\n  gradient_clip_val: 1.0\n  callbacks: [{class_path: A, init_args: {s: {4: 2}}}]\n"
    )
    merged = FORMS["yaml"].parse(_merged(tmp_path, "lightning", "a.yaml", text, "yaml")).content
    assert merged is not None
    assert (merged["trainer"]["max_epochs"], merged["trainer"]["gradient_clip_val"]) == (3, 1.0)
    assert merged["trainer"]["callbacks"][0]["init_args"] == {"s": {4: 2}}


def test_a_file_whose_batch_size_trainer_fills_in_is_merged_and_given_no_other(tmp_path: Path) -> None:
    text = '{"fp16": {"enabled": "auto"}, "train_batch_size": "auto", "zero_optimization": {"stage": 1}}'
    merged = json.loads(_merged(tmp_path, "deepspeed", "a.json", text))
    assert merged["train_batch_size"] == "auto"
    assert "train_micro_batch_size_per_gpu" not in merged
    assert "fp16" not in merged


@pytest.mark.parametrize(
    ("name", "form", "text", "expected"),
    [
        ("a.yaml", "yaml", "a: 1 # x\n", True),
        ("a.yaml", "yaml", "a: b#c\n", False),
        ("a.json", "json", '{"a": " #"}', False),
        ("a.args", "flags", "# x\n--a", True),
    ],
)
def test_comments_that_a_merge_loses_are_noticed(
    tmp_path: Path, name: str, form: str, text: str, expected: bool
) -> None:
    (tmp_path / name).write_text(text)
    assert has_comments(tmp_path / name, form) is expected


COMMANDS = [
    (["--stage", "1", "-O", "stage=3"], "got the option stage twice, as 3 and 1; give it once"),
    (["--merge"], "got --merge and no file; name it with -o"),
    (["--force"], "got --force and no file; name it with -o"),
    (["-o", "x.toml"], "a name that ends in .toml is that of a plan; name a file such as ds_config.json"),
]


@pytest.mark.parametrize(("arguments", "message"), COMMANDS)
def test_options_that_contradict_each_other_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(["export", "--to", "deepspeed", "--recipe", "bf16-master", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_device_is_not_replaced_by_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    arguments = ["export", "--to", "deepspeed", "--recipe", "bf16-master", "-o", str(tmp_path / "pipe"), "--force"]
    assert run(arguments) == 2
    assert "no plain file" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


def test_a_merge_that_loses_comments_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("# mine\nnum_processes: 2\n")
    assert run(["export", "--to", "accelerate", "--recipe", "bf16-mixed", "-o", str(path), "--merge"]) == 0
    assert "its comments are gone" in capsys.readouterr().err
    assert path.read_text().startswith("num_processes: 2\n")


GLOBS = [
    "a'); import os #",
    'a"""',
    "a\nimport os\n#",
    "a\\",
    'a\\"b',
    "a\u202eb",
    "{x}",
    "a\x00b",
    "%s$(id)`id`",
    "é\U000e0001",
]


@pytest.mark.parametrize("glob", GLOBS)
@pytest.mark.parametrize("system", ["torch-amp", "keras", "jax", "torchao"])
def test_no_module_name_breaks_out_of_exported_source(system: str, glob: str) -> None:
    base = recipe("fp8-tensorwise" if system == "torchao" else "bf16-mixed")
    plain = {"compute_dtype": "float32", "output_dtype": "float32"}
    entry = {"module": glob, "policy": plain, "reason": '""" \x1b[31m\nimport os'}
    text = export_plan(Plan(**base.model_dump() | {"modules": [entry]}), get_system(system)).text
    tree = ast.parse(text)
    assert "os" not in {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert glob in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert all(c.isprintable() or c == "\n" for c in text)

# SPDX-License-Identifier: Apache-2.0
"""What `docs/exporting.md` shows, made anew: the commands' output and the tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from floatwise.exporters import SYSTEMS, get_system, read_settings
from floatwise.exporters.read import settings_of_text
from floatwise.exporters.version import Version

__all__ = ["BFLOAT16", "bfloat16_table", "console_blocks", "replay", "system_table"]

#: What is written, whose it is, in which form, and the whole text.
BFLOAT16 = (
    ("`bf16=True`", "transformers", "json", '{"bf16": true}'),
    ("`mixed_precision: bf16`", "accelerate", "yaml", "distributed_type: 'NO'\nmixed_precision: bf16"),
    (
        "`mixed_precision: bf16` with FSDP2",
        "accelerate",
        "yaml",
        "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}",
    ),
    ('`precision="bf16-mixed"`', "lightning", "python", 'Trainer(precision="bf16-mixed")'),
    ('`precision="bf16-true"`', "lightning", "python", 'Trainer(precision="bf16-true")'),
    (
        '`precision="bf16-mixed"` with FSDP',
        "lightning",
        "python",
        'Trainer(precision="bf16-mixed", strategy="fsdp", accelerator="gpu")',
    ),
    (
        '`precision="bf16-mixed"` with DeepSpeed',
        "lightning",
        "python",
        'Trainer(precision="bf16-mixed", strategy="deepspeed", accelerator="gpu")',
    ),
    ("`bf16.enabled`", "deepspeed", "json", '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'),
    (
        "`torch_autocast.dtype`",
        "deepspeed",
        "json",
        '{"torch_autocast": {"enabled": true, "dtype": "bfloat16"}, "zero_optimization": {"stage": 2}}',
    ),
    ("`param_dtype=torch.bfloat16`", "fsdp1", "python", "MixedPrecision(param_dtype=torch.bfloat16)"),
    ("`param_dtype=torch.bfloat16`", "fsdp2", "python", "MixedPrecisionPolicy(param_dtype=torch.bfloat16)"),
    ("`--bf16`", "megatron", "flags", "--bf16"),
    ('`precision="amp_bf16"`', "composer", "python", 'Trainer(precision="amp_bf16", optimizers=o)'),
    ("`mixed_bfloat16`", "keras", "python", 'keras.config.set_dtype_policy("mixed_bfloat16")'),
)


def console_blocks(page: str) -> list[str]:
    """Returns the blocks of a page that show a command and its output."""
    return re.findall(r"```console\n(.*?)```", page, re.DOTALL)


def replay(blocks: list[str], folder: Path, call: Callable[..., str]) -> Iterator[tuple[str, str]]:
    """Runs the commands of a page one after the other; yields what the page shows and what came.

    `$ cat NAME` shows a file that a command wrote; where there is none yet, it gives the file.

    Args:
      blocks: The blocks, in order.
      folder: The working directory.
      call: Runs `floatwise` with these arguments; returns what a terminal would show.
    """
    for block in blocks:
        command, _, shown = block.partition("\n")
        words = shlex.split(command.removeprefix("$ "))
        if words[0] == "cat":
            path = folder / words[1]
            if not path.exists():
                path.write_text(shown, encoding="utf-8")
            yield shown, path.read_text(encoding="utf-8")
        else:
            yield shown, call(*words[1:])


def system_table() -> list[str]:
    """Returns the rows of the table of systems."""
    rows = ["| `--to` | forms | options | version read |", "|---|---|---|---|"]
    for system in SYSTEMS.values():
        options = "; ".join(f"`{o.name}` {', '.join(map(str, o.choices))}" for o in system.options)
        rows.append(f"| `{system.name}` | {', '.join(system.forms)} | {options} | {system.read_version} |")
    return rows


def bfloat16_table(headings: tuple[str, ...]) -> list[str]:
    """Returns the rows of the table of what `bf16` means, under headings of the page's language."""
    rows = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for shown, name, form, text in BFLOAT16:
        system = get_system(name)
        reading = read_settings(settings_of_text(text, form), system, Version.of(system.read_version))
        plan, codes = reading.plan, {finding.code for finding in reading.findings}
        master = plan.weights.master if plan.policy.param_dtype != "float32" else "–"
        formats = (
            plan.policy.param_dtype,
            "–" if "pure-16-bit" in codes else master,
            plan.compute_dtype,
            plan.policy.output_dtype,
            plan.reductions.reduce_dtype,
            plan.reductions.accumulate_dtype,
        )
        rows.append(f"| {system.title}: {shown} | {' | '.join(formats)} |")
    return rows

# SPDX-License-Identifier: Apache-2.0
"""Values that are each right and that DeepSpeed refuses together, or trains wrongly beyond doubt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from floatwise.exporters.deepspeed.facts import Facts
from floatwise.exporters.deepspeed.knobs import dtype_of
from floatwise.exporters.deepspeed.modes import Mode, sums_in
from floatwise.exporters.deepspeed.other_keys import removed_keys
from floatwise.exporters.settings import Settings
from floatwise.exporters.version import Version
from floatwise.plan.problems import Problem

__all__ = ["faults_of", "table_faults"]

_TABLES = ("fp16", "bf16", "bfloat16", "torch_autocast", "data_types")
# Up to here bfloat16 weights without ZeRO need float32 sums (runtime/engine.py, tags v0.17.5 and v0.17.6).
_OWN_SUMS_SINCE = "0.17.6"


def table_faults(settings: Settings, version: Version) -> Iterator[Problem]:
    """Yields tables that are none, and keys with which this version refuses the file."""
    for key in _TABLES:
        value = settings.get(key)
        if value is not None and not isinstance(value, Mapping):
            example = '{"grad_accum_dtype": "fp32"}' if key == "data_types" else '{"enabled": true}'
            yield Problem((key,), f"got {json.dumps(value)}, expected a table such as {example}")
    zero = settings.get("zero_optimization")
    if zero is not None and not isinstance(zero, bool | Mapping):
        yield Problem(("zero_optimization",), f'got {json.dumps(zero)}, expected a table such as {{"stage": 1}}')
    yield from removed_keys(settings.values, version)


def faults_of(facts: Facts) -> Iterator[Problem]:
    """Yields what contradicts itself."""
    if facts.get("fp16", "enabled") is True and facts.get(facts.bf16, "enabled") is True:
        yield Problem(
            (facts.bf16, "enabled"),
            "fp16 and bf16 are both enabled, which DeepSpeed refuses; set one of them to false",
        )
    if facts.get("amp", "enabled") is True:
        yield Problem(
            ("amp", "enabled"),
            "Apex AMP decides the formats by rules of its own that are not read here, and DeepSpeed 0.19.8 removed it; "
            'use "torch_autocast", "bf16" or "fp16"',
        )
    yield from _scale_starts_low(facts)
    yield from _pure_without_zero(facts)
    yield from _param_dtype(facts)
    yield from _sums_without_zero(facts)
    kept = facts.get("data_types", "keep_in_fp32_modules", default=[])
    if not (isinstance(kept, list) and all(isinstance(name, str) for name in kept)):
        yield Problem(
            ("data_types", "keep_in_fp32_modules"),
            f'got {json.dumps(kept)}, expected "auto" or a list of name patterns',
        )


def _scale_starts_low(facts: Facts) -> Iterator[Problem]:
    if facts.mode != Mode("stored", "float16") or facts.get("fp16", "loss_scale", default=0):
        return
    power, floor = (
        facts.get("fp16", "initial_scale_power", default=16),
        facts.get("fp16", "min_loss_scale", default=1),
    )
    if 2**power < floor:
        yield Problem(
            ("fp16", "min_loss_scale"),
            f"got {floor}, above the first scale 2^{power} = {2**power}: the first overflow would raise the scale, and "
            f"the next would end the run; write {2**power} or less, or a larger initial_scale_power",
        )


def _pure_without_zero(facts: Facts) -> Iterator[Problem]:
    for table, key in (
        ("fp16", "fp16_master_weights_and_grads"),
        (facts.bf16, "bf16_master_weights_and_grads"),
        (facts.bf16, "bf16_optimizer_states"),
    ):
        if facts.get(table, key) is True and facts.stage == 0:
            yield Problem((table, key), "DeepSpeed refuses it without ZeRO; set zero_optimization.stage to 1, 2 or 3")
        elif facts.get(table, key) is True and not facts.offloads and _needs_offload(facts, key):
            yield Problem(
                (table, key),
                "DeepSpeed refuses it unless DeepSpeedCPUAdam keeps the optimizer states on the CPU; delete it to keep "
                'float32 master weights, or set zero_optimization.offload_optimizer to {"device": "cpu"}',
            )
    states = facts.get(facts.bf16, "bf16_optimizer_states") is True
    if states and facts.get(facts.bf16, "bf16_master_weights_and_grads") is not True:
        yield Problem(
            (facts.bf16, "bf16_optimizer_states"),
            "DeepSpeed refuses it without bf16_master_weights_and_grads; delete it to keep float32 master weights",
        )


def _needs_offload(facts: Facts, key: str) -> bool:
    """Whether runtime/base_optimizer.py, `_configure_master_weights` (0.19.8), asks for DeepSpeedCPUAdam."""
    if key == "fp16_master_weights_and_grads":
        return True
    states = facts.get(facts.bf16, "bf16_optimizer_states") is True
    return key == "bf16_master_weights_and_grads" and not states and not facts.bf16_optimizer


def _param_dtype(facts: Facts) -> Iterator[Problem]:
    named = dtype_of(facts.get("data_types", "param_dtype"))
    if named and named != facts.mode.weights:
        yield Problem(
            ("data_types", "param_dtype"),
            f"got {named} while weights are {facts.mode.weights} by the fp16, bf16 and torch_autocast tables, which "
            "DeepSpeed refuses; delete it",
        )


def _sums_without_zero(facts: Facts) -> Iterator[Problem]:
    named = dtype_of(facts.get("data_types", "grad_accum_dtype"))
    if facts.stage:
        return
    old = facts.version < Version.of(_OWN_SUMS_SINCE)
    if old and facts.mode == Mode("stored", "bfloat16"):
        if named != "float32":
            yield Problem(
                ("data_types", "grad_accum_dtype"),
                f"DeepSpeed {facts.version} trains bf16 without ZeRO only with float32 sums (NotImplementedError); "
                'add "data_types": {"grad_accum_dtype": "fp32"}',
            )
    elif named and sums_in(facts.mode, 0, facts.version, named) != named:
        yield Problem(
            ("data_types", "grad_accum_dtype"),
            f"got {named} for weights in {facts.mode.weights} without ZeRO, which DeepSpeed {facts.version} does not "
            "implement (NotImplementedError); set zero_optimization.stage to 1 or more, or delete it",
        )

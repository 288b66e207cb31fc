# SPDX-License-Identifier: Apache-2.0
"""One recipe, one target, one recording: a verdict with its reasons."""

from __future__ import annotations

import math
from dataclasses import replace

from floatwise.formats import get_format
from floatwise.hardware import Device
from floatwise.language import Text
from floatwise.planner.decision import Island, LossScaleChoice, Verdict
from floatwise.planner.float8_share import recorded_float8_share
from floatwise.planner.forward_range import forward_islands, forward_range, island_share
from floatwise.planner.numbers import magnitude, percent
from floatwise.planner.reasons import Reason
from floatwise.planner.window import WindowEstimate, loss_scale_window
from floatwise.probe.recording import Recording

__all__ = ["judge"]

#: Share of a site's gradient, by magnitude, that may vanish at the scale the plan starts from: Micikevicius et al.
#: 2018 (section 3.1) see about 5 % of a speech model's weight gradients below 2^-24, and that it hurts.
LARGEST_LOST_SHARE = 0.05
#: Bits between the largest safe scale and the one the plan starts from: the first steps seen are not the largest.
START_MARGIN_BITS = 3
#: Largest share of the matrix FLOPs that islands may keep in float32 before float16 is not worth its care.
LARGEST_ISLAND_SHARE = 0.5
#: Islands made for gradients alone, before the model counts as too wide for float16.
MOST_GRADIENT_ISLANDS = 4

_FORMAT_OF = {
    "bf16-mixed": "bfloat16",
    "fp16-mixed": "float16",
    "bf16-master": "bfloat16",
    "fp16-master": "float16",
}
#: torchao's names of its float8 recipes (torchao.float8.config, 0.18).
_TORCHAO = {"fp8-tensorwise": "tensorwise", "fp8-rowwise": "rowwise"}
#: What the runtimes of Keras and JAX apply to a script as it is; PyTorch's applies more.
_APPLIED_EVERYWHERE = frozenset({"fp32", "tf32", "bf16-mixed", "fp16-mixed"})
_NAMES = {"keras": "Keras", "jax": "JAX"}
#: What to do in the script instead, by framework: for float8, for weights in 16 bits.
_INSTEAD = {
    "keras": (
        Text('Keras has model.quantize("float8")', 'Keras 自带 model.quantize("float8")'),
        Text("Keras keeps float32 variables under mixed policies", "Keras 的混合策略使用 float32 变量"),
    ),
    "jax": (
        Text("Flax has Fp8DotGeneral, and there is Qwix", "Flax 有 Fp8DotGeneral，另有 Qwix"),
        Text(
            "change the script: floatwise.jax.cast_params and split_master or float32_master",
            "请修改脚本：floatwise.jax.cast_params 与 split_master 或 float32_master",
        ),
    ),
}


def judge(recipe: str, recording: Recording, device: Device) -> Verdict:
    """Returns the verdict on one recipe; `accepted` means it may be chosen."""
    if recipe == "fp32":
        return Verdict(recipe, "accepted", (Reason("baseline"),))
    unit = "tfloat32" if recipe == "tf32" else "float8_e4m3fn" if recipe.startswith("fp8") else _FORMAT_OF[recipe]
    hardware = _hardware(unit, device)
    if hardware.code != "has_matrix_unit":
        return Verdict(recipe, "refused", (hardware,))
    if recording.framework in _INSTEAD and recipe not in _APPLIED_EVERYWHERE:
        instead = _INSTEAD[recording.framework][0 if recipe in _TORCHAO else 1]
        data = {"recipe": recipe, "framework": _NAMES[recording.framework], "instead": instead}
        return Verdict(recipe, "refused", (Reason("not_applied", data),))
    if recipe in _TORCHAO:
        return _float8(recipe, recording, hardware)
    if recipe == "tf32":
        return Verdict(recipe, "accepted", (hardware, Reason("tf32_only_products")))
    if recipe == "bf16-mixed":
        return Verdict(recipe, "accepted", (hardware, _bfloat16_range(recording), *_stalls(recording, "bfloat16")))
    if recipe == "bf16-master":
        # What stalls in 16-bit weights does not with their masters.
        return Verdict(recipe, "accepted", (hardware, Reason("master_split"), _bfloat16_range(recording)))
    verdict = _float16(recording, hardware)
    if recipe == "fp16-master" and verdict.status == "accepted":
        reasons = tuple(reason for reason in verdict.reasons if reason.code != "stalls")
        return replace(verdict, recipe=recipe, reasons=(Reason("master_copy"), *reasons))
    return replace(verdict, recipe=recipe)


def _float8(recipe: str, recording: Recording, hardware: Reason) -> Verdict:
    share = recorded_float8_share(recording)
    if not share:
        return Verdict(recipe, "refused", (Reason("no_float8_layers"),))
    how = Text(
        f'torchao\'s convert_to_float8_training with Float8LinearConfig.from_recipe_name("{_TORCHAO[recipe]}"), '
        "or TransformerEngine, multiply float8 on this unit.",
        f'用 torchao 的 convert_to_float8_training 和 Float8LinearConfig.from_recipe_name("{_TORCHAO[recipe]}")，'
        "或 TransformerEngine，可在该单元上以 float8 相乘。",
    )
    data = {"share": percent(share), "recipe": recipe, "how": how}
    return Verdict(recipe, "accepted", (hardware, Reason("float8_elsewhere", data)))


def _hardware(unit: str, device: Device) -> Reason:
    if unit in device.unreliable:
        why = device.unreliable[unit]
        return Reason("unreliable_format", {"device": device.name, "format": unit, "why": why})
    if not device.has_matrix(unit):
        return Reason("no_matrix_unit", {"device": device.name, "format": unit})
    peak, plain = device.matrix[unit].peak_tflops, device.vector_tflops.get("float32")
    rate = f" ({peak:g} TFLOP/s, float32 {plain:g})" if peak and plain else ""
    return Reason("has_matrix_unit", {"device": device.name, "format": unit, "rate": rate})


def _bfloat16_range(recording: Recording) -> Reason:
    # bfloat16 has float32's exponents: what it flushes is below float32's own normal numbers.
    gradients = recording.role("grad_output").values()
    tiny = sum(int(s.counts[0]) - s.zeros for s in gradients)
    total = sum(s.seen - s.zeros for s in gradients)
    return Reason("bf16_flushes", {"underflow": percent(tiny / total)}) if tiny else Reason("bf16_range")


def _stalls(recording: Recording, fmt: str) -> tuple[Reason, ...]:
    moved = sum(s.moved for s in recording.stalls)
    if not moved:
        return ()
    lost = sum(s.lost[fmt] for s in recording.stalls) / moved
    worst = max(recording.stalls, key=lambda s: s.lost[fmt] / s.moved)
    data = {
        "format": fmt,
        "share": percent(lost),
        "parameter": worst.parameter,
        "worst": percent(worst.lost[fmt] / worst.moved),
    }
    return (Reason("stalls", data),) if lost > 0 else ()


def _float16(recording: Recording, hardware: Reason) -> Verdict:
    islands, window = _with_gradient_islands(recording, forward_islands(recording))
    share = island_share(recording, islands)
    if share > LARGEST_ISLAND_SHARE:
        large = Reason("islands_too_large", {"share": percent(share)})
        return Verdict("fp16-mixed", "refused", (*(i.reason for i in islands), large), islands)
    if window is not None and _loses_gradients(window):
        site, lost = window.worst_loss_at(_start(window))
        data = {"hi": window.hi, "largest": window.largest, "site": site, "share": percent(lost)}
        return Verdict("fp16-mixed", "refused", (Reason("window_narrow", data),), islands)
    return _accepted_float16(recording, hardware, islands, window)


def _with_gradient_islands(
    recording: Recording, islands: tuple[Island, ...]
) -> tuple[tuple[Island, ...], WindowEstimate | None]:
    """Adds the modules with the largest gradients while that raises a scale at which others vanish."""
    window = loss_scale_window(recording, islands)
    for _ in range(MOST_GRADIENT_ISLANDS):
        if window is None or not _loses_gradients(window):
            break
        wider = (*islands, _gradient_island(window))
        following = loss_scale_window(recording, wider)
        if following is None or following.hi <= window.hi or island_share(recording, wider) > LARGEST_ISLAND_SHARE:
            break
        islands, window = wider, following
    return islands, window


def _loses_gradients(window: WindowEstimate) -> bool:
    return window.worst_loss_at(_start(window))[1] > LARGEST_LOST_SHARE


def _accepted_float16(
    recording: Recording, hardware: Reason, islands: tuple[Island, ...], window: WindowEstimate | None
) -> Verdict:
    reasons = [hardware]
    largest = next(iter(forward_range(recording, islands)), None)
    limit = get_format("float16").max
    if largest is not None and largest.amax > 0:
        bits = math.floor(math.log2(limit / largest.amax))
        data = {"format": "float16", "amax": magnitude(largest.amax), "site": largest.site.path, "bits": bits}
        reasons.append(Reason("forward_fits", {**data, "limit": magnitude(limit)}))
    choice = None
    if window is not None:
        start = _start(window)
        lowest = min(window.lo, start)
        choice = LossScaleChoice((lowest, window.hi), 2.0**start, window.largest)
        data = {"lo": lowest, "hi": window.hi, "largest": window.largest, "start": start}
        reasons.append(Reason("window", data))
    reasons += [island.reason for island in islands if island.reason.code != "feeds_island"]
    reasons += _stalls(recording, "float16")
    return Verdict("fp16-mixed", "accepted", tuple(reasons), islands, choice)


def _start(window: WindowEstimate) -> int:
    # GradScaler's scales do not go past 2^24 in practice either: float32 losses of a few units are exact there.
    return min(window.hi - START_MARGIN_BITS, 24)


def _gradient_island(window: WindowEstimate) -> Island:
    module = window.largest.partition(":")[0]
    if ":" not in window.largest and window.largest.rpartition(".")[2] in ("weight", "bias"):
        module = window.largest.rpartition(".")[0]
    data = {"site": window.largest, "amax": magnitude(window.amax)}
    return Island(module, Reason("gradient_limits_window", data))

# SPDX-License-Identifier: Apache-2.0
"""Part 1: dtypes of every operator's result, and values of products, in the rehearsal and for real."""

from __future__ import annotations

import warnings

import torch
from benchmarks.gpu.dtypes import Calls, Comparison, Operators, Seen, compare, float_dtypes
from benchmarks.gpu.models import Model, from_transformers, lstm, model_of
from benchmarks.gpu.operator_cases import OperatorCase, cases, operator
from benchmarks.gpu.part import Part
from benchmarks.gpu.products import ALLOWED_ROUNDINGS, distance, products
from benchmarks.gpu.sides import FakeCudaSide, Rehearsal, Side, real_side
from benchmarks.gpu.structures import STRUCTURES

from floatwise.torch.cuda_lists import TORCH_VERSION

__all__ = ["compare_lists", "compare_values", "run"]

DTYPES = (torch.float16, torch.bfloat16)

#: Kernels that only CUDA has; on the CPU nothing calls them.
_CUDA_ONLY = frozenset({"_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "_scaled_dot_product_flash_attention"})
#: What PyTorch says where a fake CUDA tensor would need CUDA.
_NOT_HERE = (
    "not linked with support for cuda",
    "not compiled with CUDA",
    "Found no NVIDIA driver",
    "CUDA driver version is insufficient",
)


def run(part: Part) -> None:
    """Compares CUDA's lists, structures around operators, models, and the values of products."""
    real, rehearsal = real_side(part.device), Rehearsal()
    of_lists = FakeCudaSide() if part.device == "cpu" else real
    for dtype in DTYPES:
        name = _name(dtype)
        with part.attempting(f"dtypes, operators of CUDA's lists, {name}"):
            if part.has_time_for(f"operators of CUDA's lists, {name}", 5):
                compare_lists(part, rehearsal, of_lists, dtype)
        if part.has_time_for(f"structures, {name}", 3):
            _structures(part, rehearsal, real, dtype)
    models = [model_of("text_gpt", part.size), model_of("digits_cnn", part.size), *_recurrent(part), *_hf(part)]
    for model in models:
        for dtype in DTYPES:
            what = f"{model.name}, {_name(dtype)}"
            with part.attempting(f"dtypes, {what}"):
                if part.has_time_for(what, 4):
                    _model(part, rehearsal, real, model, dtype)
    for dtype in DTYPES:
        if part.has_time_for(f"values of products, {_name(dtype)}", 5):
            compare_values(part, rehearsal, real, dtype)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _recurrent(part: Part) -> list[Model]:
    if part.device == "cuda":
        return [lstm()]
    part.left_out("lstm", "outside the rehearsal, PyTorch's CPU takes recurrent layers apart above autocast")
    return []


def _hf(part: Part) -> list[Model]:
    try:
        models = from_transformers()
    except Exception as error:  # a release that does not go with this torch
        part.left_out("BERT and T5", f"transformers cannot be imported: {_first_line(error)}")
        return []
    if not models:
        part.left_out("BERT and T5", "transformers is not installed")
    return models


def _give(part: Part, what: str, dtype: torch.dtype, side: Side, found: Comparison, *, required: bool = True) -> None:
    only = f"; only rehearsed {len(found.only_rehearsed)}, only real {len(found.only_real)}"
    label = f"{what}, {_name(dtype)}"
    part.row(
        f"{label:58} {found.agreeing:4} of {found.total:4} agree"
        + only * bool(found.only_rehearsed or found.only_real),
        what=what,
        dtype=_name(dtype),
        real=side.name,
        agreeing=found.agreeing,
        total=found.total,
        disagreements=found.disagreements,
        only_rehearsed=sorted(set(found.only_rehearsed)),
        only_real=sorted(set(found.only_real)),
    )
    if not required:
        return
    shown = "; ".join(found.disagreements[:5]) or f"{found.agreeing} of {found.total} agree"
    part.check(f"dtypes, {label}", found.agreeing > 0 and not found.disagreements, shown)


# -- operators of the lists -------------------------------------------------------------------------------------------


def compare_lists(part: Part, rehearsal: Side, real: Side, dtype: torch.dtype) -> None:
    """Compares the dtypes of what every case of `operator_cases` returns.

    Args:
      part: Takes what is found.
      rehearsal: The rehearsal.
      real: CUDA, or its autocast on fake tensors.
      dtype: Of the region.
    """
    called = [case for case in cases(dtype) if case.name not in _CUDA_ONLY]
    for absent in {case.name for case in called if operator(case.name) is None}:
        part.left_out(absent, f"not in torch {torch.__version__}")
    called = [case for case in called if operator(case.name) is not None]
    outcomes = []
    for side in (rehearsal, real):
        with side.holding():
            outcomes.append([_outcome(side, case, dtype) for case in called])
    found, against_list = Comparison(), Comparison()
    for case, rehearsed, really in zip(called, *outcomes, strict=True):
        if any(why in really for why in _NOT_HERE):
            part.left_out(f"{case.name} of {case.given}, {_name(dtype)}", "CUDA's autocast needs a device for it")
            continue
        of = f"{case.name} of {case.given}"
        found.note(rehearsed == really, f"{of}: rehearsed {rehearsed}, real {really}")
        if case.expected is not None:
            # The first result is what the list decides; further ones may be statistics in float32.
            expected = _name(case.expected)
            against_list.note(really.split(", ")[0] == expected, f"{of}: list {expected}, real {really}")
    _give(part, "operators of CUDA's lists, and beside them", dtype, real, found)
    # What another release of PyTorch has on its lists is no fault of the copy, and a fault where it is rehearsed.
    is_same_release = torch.__version__.partition("+")[0] == TORCH_VERSION
    _give(part, f"Floatwise's lists, of torch {TORCH_VERSION}", dtype, real, against_list, required=is_same_release)


def _outcome(side: Side, case: OperatorCase, dtype: torch.dtype) -> str:
    """Returns the dtypes of the result, or that autocast refuses, or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated operators are on the lists, too
        try:
            with side.region(dtype):
                return ", ".join(float_dtypes(operator(case.name)(*side.place(case.arguments))))
        except Exception as error:
            if "autocast" in str(error):
                return "refused inside autocast"
            return f"{type(error).__name__}: {_first_line(error)}"


# -- structures and models --------------------------------------------------------------------------------------------


def _structures(part: Part, rehearsal: Side, real: Side, dtype: torch.dtype) -> None:
    for name, structure in STRUCTURES.items():
        records = []
        for side in (rehearsal, real):
            with side.holding():
                try:
                    records.append(structure(side, dtype))
                except RuntimeError as error:  # what one side refuses, the other is to refuse
                    records.append([Seen(f"RuntimeError: {_first_line(error)}", ())])
        _give(part, name, dtype, real, compare(*records))


def _model(part: Part, rehearsal: Side, real: Side, model: Model, dtype: torch.dtype) -> None:
    made, batch = model.made(), model.batch(0)
    records = [_recorded(side, model, made, batch, dtype) for side in (rehearsal, real)]
    kinds = ("calls", "gradients") if model.is_one_operator else ("calls", "gradients", "operators")
    for kind, rehearsed, really in zip(kinds, *records, strict=False):
        _give(part, f"{model.name}, {kind}", dtype, real, compare(rehearsed, really))


def _recorded(
    side: Side, model: Model, made: torch.nn.Module, batch: tuple[torch.Tensor, ...], dtype: torch.dtype
) -> tuple[list[Seen], list[Seen], list[Seen]]:
    copied, inputs = side.model(made), side.place(batch)
    with side.holding(), Operators() as operators, Calls() as calls:
        with side.region(dtype):
            loss = model.loss(copied, *inputs)
        loss.backward()
    gradients = [Seen(f"gradient of {n}", float_dtypes(p.grad)) for n, p in copied.named_parameters()]
    return calls.results, [*calls.gradients, *gradients], operators.results


# -- values -----------------------------------------------------------------------------------------------------------


def compare_values(part: Part, rehearsal: Side, real: Side, dtype: torch.dtype) -> None:
    """Compares the values of products and their gradients.

    Args:
      part: Takes what is found.
      rehearsal: The rehearsal.
      real: What is real.
      dtype: Of the operands.
    """
    for name, (call, shapes) in products(part.size).items():
        label = f"{name}, {_name(dtype)}"
        with part.attempting(f"values, {label}"):
            found = distance(call, shapes, real, rehearsal, dtype)
            roundings = found.to_real / torch.finfo(dtype).eps
            part.row(
                f"{label:32} rehearsed from real {found.to_real:.1e}; from float64 {found.rehearsed_error:.1e}, "
                f"real {found.real_error:.1e}",
                what=f"values of {name}",
                dtype=_name(dtype),
                real=real.name,
                relative_distance=found.to_real,
                rehearsed_error=found.rehearsed_error,
                real_error=found.real_error,
            )
            part.check(
                f"values, {label}",
                found.finite and roundings <= ALLOWED_ROUNDINGS,
                f"{roundings:.2f} epsilons apart, {ALLOWED_ROUNDINGS:.0f} allowed",
            )

# SPDX-License-Identifier: Apache-2.0
"""The products in XLA's optimised program, read from its text."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

from floatwise.census.operator import Operator
from floatwise.tap.frames import is_users_file

__all__ = ["compiled_operators"]

# XLA's names of element types (openxla.org/xla/shapes) and ours.
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "s8": "int8",
    "s32": "int32",
    "u8": "uint8",
}

# Library routines that multiply matrices, by a part of their custom-call target: oneDNN's, cuBLAS's, cuDNN's, the CPU
# backend's own.
_ROUTINES = re.compile(r'custom_call_target="([^"]*(?:matmul|gemm|cublas|conv|Conv|dot|fmha)[^"]*)"')

_SHAPE = r"\(?(\w+)\[([\d,]*)\]"
_INSTRUCTION = re.compile(rf"^\s*(?:ROOT )?%?([\w.\-]+) = {_SHAPE}[^ ]*(?:[^=]*?) ([a-z][\w\-]*)\((.*)$")
_PARAMETER_NAME = re.compile(r"%([\w.\-]+)|(?<![\w=\[])([a-zA-Z_][\w.\-]*)(?=[,)])")
_INLINE_SHAPE = re.compile(rf"^{_SHAPE}")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")


def compiled_operators(text: str) -> tuple[Operator, ...]:
    """Returns the products of an optimised XLA program, alike ones counted together.

    Args:
      text: What `jax.jit(fn).lower(*args).compile().as_text()` gives.
    """
    lines, places = text.splitlines(), _places(text)
    counted: Counter[Operator] = Counter()
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    for line in lines:
        if _COMPUTATION.match(line):
            known = {}
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        name, dtype, dimensions, opcode, rest = found.groups()
        known[name] = (dtype, _shape(dimensions))
        routine = _ROUTINES.search(rest) if opcode == "custom-call" else None
        if opcode in ("dot", "ragged-dot", "convolution") or routine:
            counted[_operator(opcode, routine, known[name], rest, known, places)] += 1
    return tuple(replace(operator, count=count) for operator, count in counted.items())


def _operator(
    opcode: str,
    routine: re.Match[str] | None,
    result: tuple[str, tuple[int, ...]],
    rest: str,
    known: dict[str, tuple[str, tuple[int, ...]]],
    places: dict[str, str],
) -> Operator:
    operands = [known[name] for name in _operand_names(rest) if name in known][:2]
    return Operator(
        name=routine[1] if routine else opcode,
        operands=tuple(_DTYPES.get(dtype, dtype) for dtype, _ in operands),
        result=_DTYPES.get(result[0], result[0]),
        shapes=tuple(shape for _, shape in operands),
        result_shape=result[1],
        where=_where(rest, places),
        multiplications=_multiplications(opcode, result[1], operands, rest),
        count=0,
    )


def _operand_names(rest: str) -> list[str]:
    """Returns the names of an instruction's operands: what stands before the bracket that closes its list."""
    depth = 1
    for end, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return [first or second for first, second in _PARAMETER_NAME.findall(rest[: end + 1])]
    return []


def _multiplications(
    opcode: str, result: tuple[int, ...], operands: list[tuple[str, tuple[int, ...]]], rest: str
) -> int:
    contracting = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
    if opcode == "dot" and contracting and operands:
        return math.prod(result) * math.prod(operands[0][1][axis] for axis in _shape(contracting[1]))
    labels = re.search(r"dim_labels=\w+_(\w+)->", rest)
    if opcode == "convolution" and labels and len(operands) > 1:
        kernel = operands[1][1]
        return math.prod(result) * math.prod(kernel) // max(kernel[labels[1].index("o")], 1)
    return 0


def _shape(dimensions: str) -> tuple[int, ...]:
    return tuple(int(size) for size in dimensions.split(",") if size)


def _where(rest: str, places: dict[str, str]) -> str:
    frame = re.search(r"stack_frame_id=(\d+)", rest)
    if frame:
        return places.get(frame[1], "")
    old = re.search(r'source_file="([^"]*)" source_line=(\d+)', rest)
    return f"{old[1]}:{old[2]}" if old and is_users_file(old[1]) else ""


def _places(text: str) -> dict[str, str]:
    """Returns `file:line` of each stack frame, the innermost one of the user's, from the tables above a program."""
    files = dict(re.findall(r'^(\d+) "([^"]*)"$', _table(text, "FileNames"), re.M))
    locations = dict(re.findall(r"^(\d+) (\{.*\})$", _table(text, "FileLocations"), re.M))
    frames = dict(re.findall(r"^(\d+) (\{.*\})$", _table(text, "StackFrames"), re.M))
    places = {}
    for start in frames:
        frame, seen = start, set[str]()
        while frame in frames and frame not in seen:
            seen.add(frame)
            location = locations.get(_field(frames[frame], "file_location_id"), "")
            file_name = files.get(_field(location, "file_name_id"), "")
            if is_users_file(file_name):
                places[start] = f"{file_name}:{_field(location, 'line')}"
                break
            frame = _field(frames[frame], "parent_frame_id")
    return places


def _table(text: str, name: str) -> str:
    found = re.search(rf"^{name}\n((?:\d+ .*\n)*)", text, re.M)
    return found[1] if found else ""


def _field(text: str, name: str) -> str:
    found = re.search(rf"\b{name}=(\d+)", text)
    return found[1] if found else ""

# SPDX-License-Identifier: Apache-2.0
"""jmp's policy string, `params=float32,compute=bfloat16,output=float32`: written in full, read in all its forms."""

from __future__ import annotations

from dataclasses import dataclass

from floatwise.errors import BadInputError, nearest_names

__all__ = ["PolicyString", "is_policy_string", "parse_policy_string", "policy_string"]

# jmp/_src/policy.py, 0.0.4; `half` is bfloat16 on a TPU and float16 elsewhere. The last row is what people write.
_DTYPES = {
    "full": "float32",
    "f32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "f16": "float16",
    "float16": "float16",
    "half": "float16",
    "fp16": "float16",
}
_KEYS = {"p": "param", "params": "param", "c": "compute", "compute": "compute", "o": "output", "output": "output"}


@dataclass(frozen=True)
class PolicyString:
    """A policy string understood.

    Attributes:
      param_dtype: Format of the weights.
      compute_dtype: Format of the arithmetic.
      output_dtype: Format of the outputs.
      has_half: It says `half`, which the device decides.
      jmp_refuses: It has spaces, or a name that jmp does not know.
    """

    param_dtype: str
    compute_dtype: str
    output_dtype: str
    has_half: bool = False
    jmp_refuses: bool = False


def policy_string(param_dtype: str, compute_dtype: str, output_dtype: str) -> str:
    """Returns the string with all three parts, since what is left out follows rules that few know."""
    return f"params={param_dtype},compute={compute_dtype},output={output_dtype}"


def is_policy_string(text: str) -> bool:
    """Returns whether a text is meant as a policy: it has one of jmp's keys."""
    return any(part.partition("=")[0].strip() in _KEYS and "=" in part for part in text.split(","))


def parse_policy_string(text: str) -> PolicyString:
    """Reads a policy string, with or without spaces.

    As in jmp, params left out are float32, compute follows params, and output follows compute.

    Raises:
      BadInputError: A key or a dtype is none of jmp's.
    """
    names: dict[str, str] = {}
    if "=" in text:
        for part in text.split(","):
            key, _, value = (piece.strip() for piece in part.partition("="))
            if key not in _KEYS:
                raise BadInputError(f"got the key {key!r} in {text!r}, expected params, compute or output")
            names[_KEYS[key]] = value
    else:
        names = dict.fromkeys(("param", "compute", "output"), text.strip())
    dtypes = {key: _dtype(name, text) for key, name in names.items()}
    param = dtypes.get("param", "float32")
    compute = dtypes.get("compute", param)
    return PolicyString(
        param,
        compute,
        dtypes.get("output", compute),
        has_half="half" in names.values(),
        jmp_refuses=" " in text or "fp16" in names.values(),
    )


def _dtype(name: str, text: str) -> str:
    if name not in _DTYPES:
        near = nearest_names(name, _DTYPES)
        offer = f"; did you mean {near[0]}?" if near else ""
        raise BadInputError(f"got the dtype {name!r} in {text!r}, expected float32, bfloat16 or float16{offer}")
    return _DTYPES[name]

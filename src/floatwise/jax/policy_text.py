# SPDX-License-Identifier: Apache-2.0
"""Policies as text, in the grammar of DeepMind's jmp: `params=float32,compute=bfloat16,output=float32`."""

from __future__ import annotations

from floatwise.errors import BadInputError, UnknownNameError
from floatwise.formats import find_format
from floatwise.plan import RECIPES, Plan, Policy, recipe

__all__ = ["PolicyLike", "as_policy", "format_policy", "parse_policy"]

PolicyLike = str | Policy | Plan
"""What functions here take for a policy: its text, the name of a recipe, a `Policy`, or a whole `Plan`."""

# jmp 0.0.4, _src/policy.py, get_policy: the long and the short key of each field.
_KEYS = {"params": "param_dtype", "compute": "compute_dtype", "output": "output_dtype"}
_SHORT = {"p": "params", "c": "compute", "o": "output"}

_EXAMPLE = "params=float32,compute=bfloat16,output=float32"


def parse_policy(text: str) -> Policy:
    """Returns the policy that `text` describes.

    The grammar is jmp's, with four differences: spaces may stand anywhere, every name and alias of the formats table is
    known (float8 too), `output` is float32 when it is not given (jmp: as `compute`), and `half` is float16 on every
    machine (jmp: bfloat16 on a TPU). As in jmp, `params` is float32 when it is not given and `compute` then follows
    `params`, and the name of one format alone stands for all three.

    Args:
      text: Such as `p=f32, c=bf16`, or `bf16`.

    Raises:
      BadInputError: The text does not follow the grammar.
      UnknownNameError: There is no such format.
      PlanError: The format exists, but values of that kind cannot have it.

    >>> format_policy(parse_policy("p=f32, c=bf16"))
    'params=float32,compute=bfloat16,output=float32'
    """
    if "=" not in text:
        name = _format(text.strip(), text)
        return Policy(param_dtype=name, compute_dtype=name, output_dtype=name)
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = _SHORT.get(key, key)
        if not equals or key not in _KEYS:
            raise BadInputError(
                f"got {part.strip()!r} in the policy {text!r}; expected params=, compute= or output= "
                f"(p=, c=, o=) and a format, separated by commas, such as {_EXAMPLE}"
            )
        if _KEYS[key] in given:
            raise BadInputError(f"got {key}= twice in the policy {text!r}; give it once")
        given[_KEYS[key]] = _format(value, text)
    params = given.get("param_dtype", "float32")
    return Policy(
        param_dtype=params,
        compute_dtype=given.get("compute_dtype", params),
        output_dtype=given.get("output_dtype", "float32"),
    )


def format_policy(policy: Policy | Plan) -> str:
    """Returns a policy as text, all three fields in full; of a plan its default policy.

    `parse_policy` reads it back, and jmp does unless there is float8 in it.
    """
    own = policy.policy if isinstance(policy, Plan) else policy
    return ",".join(f"{key}={getattr(own, field)}" for key, field in _KEYS.items())


def as_policy(policy: PolicyLike) -> Policy | Plan:
    """Returns the policy or plan that is meant: recipes become plans, other text is parsed.

    Raises:
      BadInputError: The text does not follow the grammar.
      UnknownNameError: There is no such format, nor such a recipe.
      PlanError: As `parse_policy`.
    """
    if not isinstance(policy, str):
        return policy
    return recipe(policy.strip()) if policy.strip() in RECIPES else parse_policy(policy)


def _format(name: str, text: str) -> str:
    if not name:
        raise BadInputError(f"got no format in the policy {text!r}; write one, such as {_EXAMPLE}")
    if name == "full":  # jmp's word for float32
        return "float32"
    try:
        return find_format(name).name
    except UnknownNameError as error:
        raise UnknownNameError(
            "number format", name, ("float32", "bfloat16", "float16", "float8_e4m3fn"), _hint(error)
        ) from None


def _hint(error: UnknownNameError) -> str:
    return f"a policy is written as {_EXAMPLE}, or as the name of one format or of a recipe"

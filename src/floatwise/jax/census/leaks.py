# SPDX-License-Identifier: Apache-2.0
"""Where 16-bit values become float32 without anybody having written so."""

from __future__ import annotations

import linecache
import re
import traceback
from dataclasses import dataclass
from typing import Any

import jax

from floatwise.jax.census.promotions import BRINGS_BACK, SIXTEEN_BITS, WIDER, promotions
from floatwise.jax.census.walk import function_name, trace
from floatwise.tap.frames import is_users_file

__all__ = ["Leak", "leaks"]


@dataclass(frozen=True)
class Leak:
    """A place where a 16-bit value is promoted.

    Attributes:
      where: `file:line` in the user's code; empty when it is not known.
      line: That line's text, stripped; empty when it cannot be read.
      before: The format of the value, `bfloat16` or `float16`.
      after: The format that it gets.
      shape: Its shape; None when it is not known.
    """

    where: str
    line: str
    before: str
    after: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        shape = "" if self.shape is None else str(list(self.shape))
        return f"{self.where or '(unknown line)'}: {self.before}{shape} becomes {self.after}: {self.line}"


def leaks(fn: Any, *args: Any, **kwargs: Any) -> tuple[Leak, ...]:
    """Returns where 16-bit values become float32 (or float64) silently while `fn` is traced, in the order of the trace.

    Silently: because they meet a wider operand. JAX promotes both then: `np.float32(0.5)`, `np.sqrt(8)`, `jnp.ones(8)`,
    `jax.random.normal` and `jax.nn.one_hot` without a dtype, and float32 weights all do this to a bfloat16 `x`, while
    Python numbers do not. What is written out (`x.astype(jnp.float32)`), and what libraries do inside one operation
    (a mean summed in float32), is no leak.

    `jax.numpy_dtype_promotion("strict")` decides whether there is one; it raises at the first place, and also at
    harmless ones (an integer `jnp.arange`, a boolean `jax.random.bernoulli`). So when it raises, the promotions are
    looked up in the traced program, which has all of them and none of the harmless.

    Args:
      fn: A function, jitted or not; of a training step the loss function, since backward passes follow it.
      *args: Its arguments; `jax.ShapeDtypeStruct` will do for an array.
      **kwargs: More of them.
    """
    refusal = _strict_refusal(fn, args, kwargs)
    if refusal is None:
        return ()
    found: dict[Leak, None] = {}
    for promotion in promotions(trace(fn, args, kwargs).jaxpr):
        text = _source(promotion.where)
        found[Leak(promotion.where, text, promotion.before, promotion.after, promotion.shape)] = None
    first = _of_error(refusal)
    if first is not None and not any(leak.where == first.where for leak in found):
        found = {first: None} | found
    return tuple(found)


def _strict_refusal(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    with jax.numpy_dtype_promotion("strict"):
        try:
            trace(fn, args, kwargs)
        except ValueError as error:
            if type(error).__name__ != "TypePromotionError":  # JAX does not export it
                raise
            return error
    return None


def _of_error(error: Exception) -> Leak | None:
    """Returns the leak that strict promotion has refused; None when what it refused is harmless."""
    named = re.findall(r"\b(?:bfloat16|float16|float32|float64)\b", str(error))
    narrow = [name for name in dict.fromkeys(named) if name in SIXTEEN_BITS]
    wide = next((name for name in named if name in WIDER), "float32" if len(narrow) > 1 else None)
    if not narrow or wide is None:
        return None
    stack = traceback.extract_tb(error.__traceback__)
    if any(function_name(frame.filename, frame.name).startswith(BRINGS_BACK) for frame in stack):
        return None
    frames = [frame for frame in stack if is_users_file(frame.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return Leak(where, _source(where), narrow[0], wide, None)


def _source(where: str) -> str:
    file_name, _, number = where.rpartition(":")
    return linecache.getline(file_name, int(number)).strip() if file_name else ""

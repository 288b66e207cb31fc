# SPDX-License-Identifier: Apache-2.0
"""Recording calls of a JAX training step, as a library call: `floatwise.jax.probe`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from floatwise.errors import BadInputError
from floatwise.jax.script.gradient_tap import GradientTap
from floatwise.probe.jax_child import recorded
from floatwise.probe.jax_recorder import JaxRecorder
from floatwise.probe.recording import Recording
from floatwise.probe.value_log import ValueLog
from floatwise.tap.frames import last_users_line
from floatwise.tap.patches import Patches
from floatwise.tap.step_count import StepCount

__all__ = ["probe"]

_numbers = itertools.count(1)
_context: Any = None


def probe(step: Callable[..., Any], *args: Any, steps: int = 1, full: bool = False) -> Recording:
    """Records what values occur in a training step: exponents, largest magnitudes, gradients and updates.

    `step` is any function that takes gradients with `jax.grad` or `jax.value_and_grad`, or with what Flax, Equinox
    and Haiku build on them; jitted or not, called before or not. It is called as it is, computes what it computes
    anyway, and nothing is left behind afterwards; arguments that it donates are gone, as after any call.

    From the second call on, arguments are replaced with results where these have the same structure, shapes and
    dtypes: the first result takes the place of the first argument, the second of the second, as long as they agree. A
    step that takes `(state, batch)` and returns `(state, loss)` or `state` so trains on; one that changes an nnx model
    and optimizer in place does as well. Other arguments, such as the batch, stay the same.

    Args:
      step: The function.
      *args: Its arguments.
      steps: Calls. Default: 1, which shows values and gradients, but no updates: these need two.
      full: Look at every element, not at 16 Ki of a tensor. Default: False.

    Returns:
      The recording, for `floatwise.planner.decide`; `floatwise.probe.recording.save_recording` writes it for
      `floatwise plan --recording`.

    Raises:
      BadInputError: `steps` is not positive, or `step` took no gradient that was seen.
    """
    if steps < 1:
        raise BadInputError(f"got steps={steps}; allowed: 1 or more")
    log, losses, found, untraceable = ValueLog(full), list[float](), list[tuple[str, str, str]](), list[str]()

    def ended(index: int, loss: float) -> None:
        recorder.end_iteration()
        losses.append(loss)

    def gradient_came(key: Hashable, loss: float) -> None:
        count.stepped(key, loss)

    def note(*what: str) -> None:
        if what not in found:
            found.append(what)  # type: ignore[arg-type]

    def gave_up(error: Exception) -> None:
        untraceable.append(last_users_line(error.__traceback__) or type(error).__name__)

    count = StepCount(ended)
    recorder = JaxRecorder(log, gradient_came, note, gave_up)
    patches = Patches()
    tap = GradientTap(patches, recorder, made_before=True)
    try:
        with _traced_anew():
            _call(step, args, steps)
    finally:
        patches.undo()
        recorder.active = False
    _check(tap, losses, untraceable, recorder)
    name = getattr(step, "__name__", type(step).__name__)
    return recorded(recorder, log, script=name, arguments=(), losses=losses, found=tuple(found))


def _call(step: Callable[..., Any], args: tuple[Any, ...], steps: int) -> None:
    for _ in range(steps):
        results = step(*args)
        jax.block_until_ready(results)  # type: ignore[no-untyped-call]
        jax.effects_barrier()  # type: ignore[no-untyped-call]
        args = _next_arguments(args, results)


def _next_arguments(args: tuple[Any, ...], results: Any) -> tuple[Any, ...]:
    """Returns the arguments of the next call: results in place of those that they agree with, from the first on."""
    if args and _agree(args[0], results):
        return (results, *args[1:])
    given = list(args)
    for i, result in enumerate(results if isinstance(results, tuple | list) else ()):
        if i >= len(given) or not _agree(given[i], result):
            break
        given[i] = result
    return tuple(given)


def _agree(first: Any, second: Any) -> bool:
    structure: Any = jax.tree.structure(first)
    if structure != jax.tree.structure(second) or not structure.num_leaves:
        return False
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(
        jax.numpy.shape(a) == jax.numpy.shape(b) and getattr(a, "dtype", None) == getattr(b, "dtype", None)
        for a, b in pairs
    )


@contextmanager
def _traced_anew() -> Iterator[None]:
    """Has JAX trace what it has traced before, and forget what it traces now, where it knows contexts (0.8 on)."""
    global _context
    if not hasattr(jax, "make_user_context"):
        jax.clear_caches()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            jax.clear_caches()  # type: ignore[no-untyped-call]
        return
    if _context is None:
        _context = jax.make_user_context(default_value=0)  # type: ignore[no-untyped-call]
    with _context(next(_numbers)):
        yield


def _check(tap: GradientTap, losses: list[float], untraceable: list[str], recorder: JaxRecorder) -> None:
    if not losses:
        raise BadInputError(
            f"got a step that computed no gradient which can be seen ({tap.calls} traced); it must take its gradients "
            "with jax.grad or jax.value_and_grad, or with what Flax, Equinox and Haiku build on them"
        )
    if untraceable and not any(site.matrix for site in recorder.sites(1)):
        raise BadInputError(
            f"{untraceable[0]}: got a loss function that JAX cannot trace, so the values inside were not seen; it must "
            "work under jax.jit: use jax.lax.cond or jnp.where in place of Python branches on values"
        )

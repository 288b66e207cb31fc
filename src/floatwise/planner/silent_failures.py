# SPDX-License-Identifier: Apache-2.0
"""What a finite loss hides in a float32 run: gradients that are zero or not finite, weights that never move."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from floatwise.planner.decision import Finding
from floatwise.planner.reasons import Reason
from floatwise.probe.recording import Recording

__all__ = ["silent_failures"]

#: Paths named in a sentence; the rest is counted.
_MOST_NAMED = 3


def silent_failures(recording: Recording) -> Iterator[Finding]:
    """Yields a finding for each kind of failure that the losses do not show."""
    if not all(map(math.isfinite, recording.losses)):
        return  # the losses do show it
    gradients, updates = recording.role("weight_grad"), recording.role("update")
    bad = [path for path, seen in gradients.items() if seen.nonfinite]
    # Where every gradient is zero the loss depends on nothing, and says so by not moving.
    zero = [path for path, seen in gradients.items() if seen.seen and seen.amax == 0 and not seen.nonfinite]
    still = [
        path
        for path, seen in gradients.items()
        if seen.amax > 0 and path in updates and updates[path].amax == 0 and updates[path].observations > 1
    ]
    for code, paths in (("hidden_nonfinite", bad), ("hidden_zero", zero), ("weights_still", still)):
        if paths:
            yield Finding("warning", paths[0], Reason(code, {"paths": _named(paths), "count": len(paths)}))


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_NAMED
    return ", ".join(paths[:_MOST_NAMED]) + (f", … (+{more})" if more > 0 else "")

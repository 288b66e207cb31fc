# SPDX-License-Identifier: Apache-2.0
"""Recordings built by hand: what a probed run of a small model might have shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from floatwise.probe.recording import Recording, Site, Stall
from floatwise.stats import TensorSummary, summarise

Values = Mapping[tuple[str, str], float]


def normal(deviation: float, seed: int = 0) -> TensorSummary:
    """Summarises normal values; their largest is about 3.7 deviations."""
    values = np.random.default_rng(seed).standard_normal(4096) * deviation
    return summarise(values.astype(np.float32))


def site(path: str, kind: str = "linear", matrix: bool = True, **fields: Any) -> Site:
    """Returns a site of 1024 rows and 256 × 256 weights."""
    parent = path.partition(":")[0] if ":" in path else path.rpartition(".")[0]
    sides: dict[str, Any] = {"m": 1024, "n": 256, "k": 256, "flops": 2 * 1024 * 256 * 256} if matrix else {}
    return Site(path, kind, parent, matrix, calls=1, **{**sides, **fields})


SITES = (
    site("embed", "Embedding", matrix=False),
    site("blocks.0.norm", "LayerNorm", matrix=False),
    site("blocks.0.attention"),
    site("blocks.0.attention:softmax", "softmax", matrix=False),
    site("blocks.0.ffn.wi"),
    site("blocks.0.ffn.wo", sources=("blocks.0.ffn.wi",)),
    site("head"),
    site(":cross_entropy", "cross_entropy", matrix=False),
)


def make_recording(values: Values | None = None, **fields: Any) -> Recording:
    """Returns a healthy recording.

    Args:
      values: Standard deviations of (site or parameter, role).
      **fields: Fields of the recording in place of the usual ones.
    """
    deviations: dict[tuple[str, str], float] = {}
    for s in fields.get("sites", SITES):
        if s.matrix:
            deviations |= {(s.path, "input"): 1.0, (s.path, "output"): 1.0, (s.path, "grad_output"): 1e-4}
            deviations |= {
                (f"{s.path}.weight", "weight_grad"): 1e-3,
                (f"{s.path}.weight", "weight"): 0.02,
            }
    deviations |= dict(values or {})
    base: dict[str, Any] = {
        "script": "train.py",
        "arguments": (),
        "steps": 20,
        "device": "cpu",
        "parameters": 1_000_000,
        "parameter_dtype": "float32",
        "optimizers": ("AdamW",),
        "losses": tuple(5.0 - 0.1 * i for i in range(20)),
        "matrix_share": 0.8,
        "sites": SITES,
        "found": (),
        "summaries": {key: normal(d, seed) for seed, (key, d) in enumerate(deviations.items())},
        "stalls": (Stall("blocks.0.norm.weight", 1000, {"float16": 400, "bfloat16": 990}),),
    }
    return Recording(**{**base, **fields})

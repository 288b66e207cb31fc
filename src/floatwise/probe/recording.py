# SPDX-License-Identifier: Apache-2.0
"""What a probed float32 run showed, and its file: a zip of arrays and JSON, no pickle."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from floatwise.errors import BadFileError
from floatwise.stats import TensorSummary

__all__ = ["Recording", "Site", "Stall", "load_recording", "save_recording"]

#: Version of the file's layout; a reader refuses newer ones.
RECORDING_VERSION = 1
_META = "recording.json"


@dataclass(frozen=True)
class Site:
    """One place that computes: a module, or an operator called in a module's forward.

    Attributes:
      path: Module path, or `module path:operator`.
      kind: Class name of the module, or the operator's name.
      parent: Path of the module whose forward calls it; empty for the model itself or the script.
      matrix: True when autocast runs it in the lower precision.
      calls: Calls recorded.
      m: Rows of the product, as is `n` (columns) and `k` (inner length); 0 when it is no product.
      flops: Forward FLOPs of all calls of one training iteration.
      weights: Paths of the parameters among the operands.
      sources: Sites whose 16-bit results an input of a product, or the result of arithmetic, is computed from; see
        `SourceTracer`.
      constant: A number in the arithmetic that float16 cannot hold; 0 for none.
    """

    path: str
    kind: str
    parent: str
    matrix: bool
    calls: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    flops: int = 0
    weights: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    constant: float = 0.0


@dataclass(frozen=True)
class Stall:
    """Weight updates that a 16-bit weight would lose.

    Attributes:
      parameter: Its path.
      moved: Sampled elements whose float32 update was not zero.
      lost: For each format, how many of these leave a weight stored in it unchanged.
    """

    parameter: str
    moved: int
    lost: Mapping[str, int]


@dataclass(frozen=True)
class Recording:
    """A probed float32 run.

    Attributes:
      script: Path of the script, as given.
      arguments: The script's own arguments.
      steps: Iterations recorded.
      device: Name the script's device reported ("cpu", "NVIDIA A100-SXM4-80GB").
      parameters: Trainable parameters.
      parameter_dtype: dtype of most of them in the script.
      optimizers: Class names of the optimizers that stepped; "update by hand" for none.
      losses: Loss of each iteration.
      matrix_share: Share of a float32 step's time in matrix products and convolutions on the recording machine.
      sites: Every place that computes, in the order of first use.
      found: What the script already does about precision: kind, where, detail.
      summaries: Values by (site or parameter path, role).
      stalls: Lost updates by parameter.
      versions: Package versions ("torch": "2.13.0").
      rehearsed: What rehearsals of the script have shown, as JSON; see `floatwise.planner.rehearsed`.
      measured: What was measured under a plan on the recording machine, as JSON; None when nothing was.
      framework: What the script trains with: `torch`, `keras` or `jax`.
      backend: What Keras computes with: `tensorflow`, `jax` or `torch`; empty for the others.
    """

    script: str
    arguments: tuple[str, ...]
    steps: int
    device: str
    parameters: int
    parameter_dtype: str
    optimizers: tuple[str, ...]
    losses: tuple[float, ...]
    matrix_share: float
    sites: tuple[Site, ...]
    found: tuple[tuple[str, str, str], ...]
    summaries: Mapping[tuple[str, str], TensorSummary]
    stalls: tuple[Stall, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    rehearsed: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] | None = None
    framework: str = "torch"
    backend: str = ""

    def role(self, role: str) -> dict[str, TensorSummary]:
        """Returns the summaries of one role by path."""
        return {path: summary for (path, r), summary in self.summaries.items() if r == role}

    @property
    def matrix_sites(self) -> tuple[Site, ...]:
        """The sites that autocast runs in the lower precision."""
        return tuple(site for site in self.sites if site.matrix)


def save_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Writes the recording to `path`, which holds either the old file or the whole new one at any time."""
    meta = {f.name: getattr(recording, f.name) for f in dataclasses.fields(recording) if f.name != "summaries"}
    meta["sites"] = [dataclasses.asdict(s) for s in recording.sites]
    meta["stalls"] = [dataclasses.asdict(s) for s in recording.stalls]
    keys = list(recording.summaries)
    rows = [recording.summaries[key].to_dict() for key in keys]
    counts = np.stack([recording.summaries[key].counts for key in keys]) if keys else np.zeros((0, 256), np.int64)
    for row in rows:
        row.pop("counts")
    meta["summaries"] = [[*key, row] for key, row in zip(keys, rows, strict=True)]
    target = Path(path)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED) as archive:
            header = {"floatwise_recording": RECORDING_VERSION, **meta}
            archive.writestr(_META, json.dumps(header, indent=1))
            buffer = io.BytesIO()
            np.save(buffer, counts, allow_pickle=False)
            archive.writestr("counts.npy", buffer.getvalue())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def load_recording(path: str | os.PathLike[str]) -> Recording:
    """Reads a recording.

    Raises:
      BadFileError: The file is missing, damaged, from a newer version, or no recording.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadFileError(
            f"{path}: cannot be read: {error.strerror}; write one with `floatwise plan SCRIPT`"
        ) from error
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            meta = dict(json.loads(archive.read(_META)))
            counts = np.load(io.BytesIO(archive.read("counts.npy")), allow_pickle=False)
    except Exception as error:  # a damaged zip raises a dozen kinds of errors, from zlib, struct and others
        raise BadFileError(
            f"{path}: not a Floatwise recording, or a damaged one ({error}); record again with `floatwise plan SCRIPT`"
        ) from error
    version = meta.pop("floatwise_recording", None)
    if not isinstance(version, int) or not 1 <= version <= RECORDING_VERSION:
        raise BadFileError(
            f"{path}: recording version {version!r}; this Floatwise reads versions up to {RECORDING_VERSION}: "
            "update Floatwise, or record again"
        )
    try:
        return _from_meta(meta, counts)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadFileError(
            f"{path}: damaged recording ({error!r}); record again with `floatwise plan SCRIPT`"
        ) from error


def _from_meta(meta: dict[str, Any], counts: np.ndarray) -> Recording:
    rows = meta.pop("summaries")
    if len(rows) != len(counts):
        raise ValueError(f"{len(rows)} summaries but {len(counts)} histograms")
    summaries = {
        (path, role): TensorSummary.from_dict({**row, "counts": counts[i].tolist()})
        for i, (path, role, row) in enumerate(rows)
    }
    meta["sites"] = _rows(Site, [_site_row(row) for row in meta["sites"]])
    meta["stalls"] = _rows(Stall, meta["stalls"])
    meta["found"] = tuple((kind, where, detail) for kind, where, detail in meta["found"])
    for name in ("arguments", "optimizers", "losses"):
        meta[name] = tuple(meta[name])
    recording = Recording(summaries=summaries, **meta)
    _check_types(recording)
    return recording


def _check_types(recording: Recording) -> None:
    numbers = [recording.steps, recording.parameters, recording.matrix_share, *recording.losses]
    numbers += [n for s in recording.sites for n in (s.calls, s.m, s.n, s.k, s.flops)]
    numbers += [n for s in recording.stalls for n in (s.moved, *s.lost.values())]
    words = [recording.script, recording.device, recording.parameter_dtype, *recording.arguments]
    words += [recording.framework, recording.backend]
    words += [w for s in recording.sites for w in (s.path, s.kind, s.parent)]
    if not all(isinstance(n, (int, float)) for n in numbers) or not all(isinstance(w, str) for w in words):
        raise TypeError("a number or a word stands where the other belongs")
    if any(not math.isfinite(s.amax) or s.amax < 0 for s in recording.summaries.values()):
        raise ValueError("the largest magnitude of a tensor is no finite number")
    if not isinstance(recording.rehearsed, Mapping) or not isinstance(recording.measured, (Mapping, type(None))):
        raise TypeError("rehearsals and measurements must be tables")


def _site_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "weights": tuple(row["weights"]), "sources": tuple(row["sources"])}


def _rows(kind: type[Any], rows: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple(kind(**row) for row in rows)

# SPDX-License-Identifier: Apache-2.0
"""What a project is written from: the answers of the person, checked one by one and together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from floatwise.errors import BadInputError, UnknownNameError
from floatwise.hardware import Device, get_device
from floatwise.language import Text, current_language
from floatwise.scaffold.framework import PARALLELS, Framework
from floatwise.scaffold.frameworks import FRAMEWORKS

__all__ = ["LANGUAGES", "SIZES", "TASKS", "TROUBLES", "Answers"]

_Row = TypeVar("_Row")

SIZES: Mapping[str, Text] = {
    "tiny": Text("about 0.1 million weights: seconds on a CPU", "约 10 万参数：CPU 上几秒"),
    "small": Text("some million weights", "几百万参数"),
    "medium": Text("about 100 million weights", "约 1 亿参数"),
    "large": Text("about 1 billion weights", "约 10 亿参数"),
}
TASKS: Mapping[str, Text] = {
    "image": Text("classify images (residual CNN)", "图像分类（残差卷积网络）"),
    "text": Text("predict the next byte of text (GPT)", "预测文本的下一个字节（GPT）"),
    "tabular": Text("classify or predict from a table (MLP)", "表格分类或回归（MLP）"),
}
TROUBLES: Mapping[str, Text] = {
    "none": Text("none", "没有问题"),
    "oom": Text("out of memory", "显存不足"),
    "nan": Text("NaN or infinite losses", "损失出现 NaN 或无穷大"),
    "slow": Text("too slow", "训练太慢"),
}
LANGUAGES: Mapping[str, Text] = {"en": Text("English", "英文"), "zh": Text("Chinese", "中文")}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the project is to be; empty values (0 for `gpus`) stand for their defaults, which are filled in.

    Attributes:
      framework: A key of `FRAMEWORKS`.
      backend: Of the framework's backends; empty where it has none. Default: its first.
      parallel: A key of `PARALLELS` that the framework allows.
      size: A key of `SIZES`. Default: tiny on a CPU, small elsewhere.
      task: A key of `TASKS`.
      trouble: A key of `TROUBLES`.
      device: The device's id; every name that `hardware.get_device` knows is accepted. Default: the best one here.
      gpus: Number of devices. Default: 1 for single, 2 elsewhere.
      data: Absolute path of the user's data, or empty for a packaged set.
      language: Of comments and README: en or zh. Default: the current language.

    Raises:
      UnknownNameError: A name is unknown; the message names the nearest.
      BadInputError: Values contradict each other, or the data is not there.
    """

    framework: str = "pytorch"
    backend: str = ""
    parallel: str = "single"
    size: str = ""
    task: str = "image"
    trouble: str = "none"
    device: str = "here"
    gpus: int = 0
    data: str = ""
    language: str = ""

    def __post_init__(self) -> None:
        """Fills defaults and checks everything."""
        row = _one_of("framework", self.framework, FRAMEWORKS)
        self._set("device", get_device(self.device).id)
        self._set("size", self.size or ("tiny" if self.device_row.kind == "cpu" else "small"))
        self._set("language", self.language or current_language())
        for kind, name, known in (
            ("parallelism", self.parallel, PARALLELS),
            ("size", self.size, SIZES),
            ("task", self.task, TASKS),
            ("trouble", self.trouble, TROUBLES),
            ("language", self.language, LANGUAGES),
        ):
            _one_of(kind, name, known)
        self._check_backend(row)
        self._check_parallel(row)
        self._check_device(row)
        if self.data:
            self._check_data()

    @property
    def device_row(self) -> Device:
        """The device's row of the hardware table."""
        return get_device(self.device)

    @property
    def row(self) -> Framework:
        """The framework's row."""
        return FRAMEWORKS[self.framework]

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_backend(self, row: Framework) -> None:
        if not row.backends:
            if self.backend:
                raise BadInputError(
                    f"got backend = {self.backend!r}: {row.name} has no choice of backends; leave it out"
                )
            return
        self._set("backend", self.backend or row.backends[0])
        if self.backend not in row.backends:
            raise UnknownNameError(f"backend of {row.name}", self.backend, row.backends)

    def _check_parallel(self, row: Framework) -> None:
        why = row.why_not(self.parallel, self.backend)
        if why is not None:
            on = f" on {self.backend}" if self.backend else ""
            possible = ", ".join(row.parallels(self.backend))
            raise BadInputError(f"{row.name}{on} cannot train with {self.parallel}: {why}\npossible: {possible}")
        self._set("gpus", self.gpus or (1 if self.parallel == "single" else 2))
        if self.parallel == "single" and self.gpus != 1:
            others = [name for name in row.parallels(self.backend) if name != "single"]
            remedy = f"choose --parallel {' or '.join(others)} for several" if others else "leave --gpus out"
            raise BadInputError(f"got gpus = {self.gpus} with parallel = single, expected 1; {remedy}")
        if self.parallel != "single" and self.gpus < 2:
            raise BadInputError(
                f"got gpus = {self.gpus} with parallel = {self.parallel}, expected 2 or more; "
                "choose --parallel single for one device"
            )

    def _check_device(self, row: Framework) -> None:
        device = self.device_row
        if device.kind not in row.device_kinds:
            others = [other.name for other in FRAMEWORKS.values() if device.kind in other.device_kinds]
            remedy = f"choose --framework {' or '.join(others)}, or another --device" if others else "name a GPU or CPU"
            raise BadInputError(
                f"scripts for {row.name} run on {' and '.join(_plural(k) for k in row.device_kinds)}, "
                f"and {device.name} is a {device.kind}; {remedy}"
            )
        if device.vendor == "apple" and self.parallel != "single":
            raise BadInputError(
                f"got parallel = {self.parallel} for {device.name}, which is one GPU and has no collective "
                "operations; choose --parallel single"
            )

    def _check_data(self) -> None:
        path = Path(self.data).expanduser().absolute()
        self._set("data", str(path))
        if not path.exists():
            raise BadInputError(f"{path}: there is no such file or folder; correct --data, or leave it out to begin")
        suffix, folder = path.suffix.casefold(), path.is_dir()
        fits = {
            "image": folder or suffix == ".npz",
            "text": folder or suffix == ".txt",
            "tabular": suffix == ".csv" and not folder,
        }
        if not fits[self.task]:
            raise BadInputError(f"{path}: for the task {self.task}, data is {_DATA_KINDS[self.task]}")


_DATA_KINDS = {
    "image": "an .npz file with x and y, or a folder that has a folder of images for each class",
    "text": "a .txt file, or a folder of them",
    "tabular": "a .csv file with the target in its last column",
}


def _plural(kind: str) -> str:
    return {"gpu": "GPUs", "cpu": "CPUs", "tpu": "TPUs"}.get(kind, f"{kind}s")


def _one_of(kind: str, name: str, known: Mapping[str, _Row]) -> _Row:
    if name not in known:
        raise UnknownNameError(kind, name, known)
    return known[name]

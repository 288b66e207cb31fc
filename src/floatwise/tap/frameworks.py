# SPDX-License-Identifier: Apache-2.0
"""Mixed precision asked for through a trainer's settings: recognised when the trainer is imported."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatwise.tap.existing import ExistingPrecision

__all__ = ["recognise_trainers"]


def recognise_trainers(existing: ExistingPrecision) -> None:
    """Arranges for the trainers' precision settings to be reported and set to float32.

    Names of the settings: transformers 5.24 `TrainingArguments`, accelerate 1.15 `Accelerator`,
    lightning 2.6 `Trainer` and `Fabric`, deepspeed 0.19 `initialize`.
    """
    known: dict[str, Callable[[ModuleType], None]] = {
        "transformers.training_args": lambda m: _wrap_training_arguments(existing, m),
        "accelerate.accelerator": lambda m: _wrap_init(existing, m, "Accelerator", _accelerate),
        "deepspeed": lambda m: existing.tap.patches.replace(m, "initialize", lambda f: _deepspeed(existing, f)),
        "torch.distributed.fsdp.fully_sharded_data_parallel": lambda m: _wrap_init(
            existing, m, "FullyShardedDataParallel", _fsdp1
        ),
        "torch.distributed.fsdp": lambda m: existing.tap.patches.replace(
            m, "fully_shard", lambda f: _fully_shard(existing, f)
        ),
    }
    for package in ("lightning.pytorch", "pytorch_lightning"):
        known[f"{package}.trainer.trainer"] = lambda m: _wrap_init(existing, m, "Trainer", _lightning)
    for package in ("lightning.fabric", "lightning_fabric"):
        known[f"{package}.fabric"] = lambda m: _wrap_init(existing, m, "Fabric", _lightning)
    for name in [n for n in known if n in sys.modules]:
        known.pop(name)(sys.modules[name])
    finder = _AfterImport(known)
    sys.meta_path.insert(0, finder)
    existing.tap.patches.on_undo(lambda: sys.meta_path.remove(finder))


def _wrap_init(
    existing: ExistingPrecision,
    module: ModuleType,
    class_name: str,
    settle: Callable[[dict[str, Any]], list[str]],
) -> None:
    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)  # command line builders read the signature
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind_partial(self, *args, **kwargs)
            for asked in settle(bound.arguments):
                existing.found("found_trainer_setting", f"{class_name}({asked})")
            original(*bound.args, **bound.kwargs)

        return init

    existing.tap.patches.replace(getattr(module, class_name), "__init__", make)


def _wrap_training_arguments(existing: ExistingPrecision, module: ModuleType) -> None:
    """Settles the fields after they are set: a subclass (`Seq2SeqTrainingArguments`) has an `__init__` of its own."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def post_init(self: Any) -> None:
            for name in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval"):
                if getattr(self, name, False):
                    existing.found("found_trainer_setting", f"{type(self).__name__}({name}=True)")
                    setattr(self, name, False)
            if getattr(self, "deepspeed", None):
                existing.found("found_trainer_setting", f"{type(self).__name__}(deepspeed={self.deepspeed!r})")
            original(self)

        return post_init

    existing.tap.patches.replace(module.TrainingArguments, "__post_init__", make)


def _accelerate(kwargs: dict[str, Any]) -> list[str]:
    asked = kwargs.get("mixed_precision") or os.environ.get("ACCELERATE_MIXED_PRECISION")
    if asked is None or str(asked) == "no":
        return []
    kwargs["mixed_precision"] = "no"
    return [f"mixed_precision={str(asked)!r}"]


def _lightning(kwargs: dict[str, Any]) -> list[str]:
    asked = kwargs.get("precision")
    if asked is None or str(asked) in ("32", "32-true", "64", "64-true"):
        return []
    kwargs["precision"] = "32-true"
    return [f"precision={asked!r}"]


def _fsdp1(kwargs: dict[str, Any]) -> list[str]:
    asked = kwargs.pop("mixed_precision", None)
    return [] if asked is None else [f"mixed_precision={_dtypes(asked)}"]


def _fully_shard(existing: ExistingPrecision, original: Any) -> Any:
    @functools.wraps(original)  # with what `contract` has hung onto it
    def fully_shard(*args: Any, **kwargs: Any) -> Any:
        asked = _dtypes(kwargs.pop("mp_policy", None))
        if asked != "None":
            existing.found("found_trainer_setting", f"fully_shard(mp_policy={asked})")
        return original(*args, **kwargs)

    return fully_shard


def _dtypes(policy: Any) -> str:
    """Returns the formats that a mixed precision of FSDP's asks for, as they are written."""
    names = ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")
    asked = [(name, getattr(policy, name, None)) for name in names]
    told = [f"{name}={str(dtype).removeprefix('torch.')}" for name, dtype in asked if dtype is not None]
    return f"{type(policy).__name__}({', '.join(told)})" if told else "None"


#: Blocks of a DeepSpeed 0.19 configuration that choose a 16-bit or 8-bit precision.
_DEEPSPEED_BLOCKS = ("fp16", "bf16", "bfloat16", "amp", "torch_autocast", "fp8")


def _deepspeed(existing: ExistingPrecision, original: Any) -> Any:
    def initialize(*args: Any, **kwargs: Any) -> Any:
        for name in ("config", "config_params"):
            config = _read_deepspeed(kwargs.get(name))
            if config is None:
                continue
            asked = [b for b in _DEEPSPEED_BLOCKS if isinstance(config.get(b), dict) and config[b].get("enabled")]
            for block in asked:
                existing.found("found_deepspeed", f'"{block}": {json.dumps(config[block])}')
            kwargs[name] = {k: v for k, v in config.items() if k not in _DEEPSPEED_BLOCKS}
        return original(*args, **kwargs)

    return initialize


def _read_deepspeed(config: Any) -> dict[str, Any] | None:
    if isinstance(config, dict):
        return config
    if isinstance(config, (str, os.PathLike)) and Path(config).is_file():
        loaded = json.loads(Path(config).read_text())
        return loaded if isinstance(loaded, dict) else None
    return None


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once, right after a named module has been imported."""

    def __init__(self, callbacks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._callbacks = callbacks

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        callback = self._callbacks.pop(name, None)
        if callback is None:
            return None
        spec = _find_after(self, name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            callback(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _find_after(this: _AfterImport, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is not this and (find := getattr(finder, "find_spec", None)) is not None:
            spec: importlib.machinery.ModuleSpec | None = find(name, path, None)
            if spec is not None:
                return spec
    return None

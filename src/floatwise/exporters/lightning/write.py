# SPDX-License-Identifier: Apache-2.0
"""A plan as the arguments of Lightning's Trainer or Fabric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatwise.exporters.grad_scaler import grad_scaler_arguments, loss_scaler_arguments
from floatwise.exporters.lightning.deepspeed_scale import strategy_arguments
from floatwise.exporters.lightning.strategies import formats_of
from floatwise.exporters.python_text import call_text, torch_dtype
from floatwise.exporters.settings import Dotted
from floatwise.exporters.system import Request
from floatwise.exporters.torch_source import nested, scale_where_float16, scaler_source, tf32_line
from floatwise.language import Text
from floatwise.plan.model import LossScale, Plan

__all__ = ["precision_of", "reduced_here", "write"]

_NAMES = {"float32": "32-true", "float16": "16-mixed", "bfloat16": "bf16-mixed"}
_HOOKS = {"bfloat16": "bf16_compress_hook", "float16": "fp16_compress_hook"}
_HOOKS_MODULE = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"

_DOC = Text(
    "Returns a {name} that trains in {precision}; `others` are its other arguments.",
    "返回以 {precision} 训练的 {name}；others 为其余参数。",
)
_LATE_SCALER = Text(
    "    # Its argument `scaler` always raises ValueError.\n", "    # 其 scaler 参数总会抛出 ValueError。\n"
)


def precision_of(plan: Plan) -> str:
    """Returns the precision text. Of 16-bit weights too it is "mixed": in "true" nothing would keep their updates."""
    return _NAMES[plan.compute_dtype]


def reduced_here(plan: Plan, request: Request) -> str:
    """Returns the format that gradients will be reduced in."""
    wanted, strategy = plan.reductions.reduce_dtype, request.options["strategy"]
    python = request.form == "python"
    hooks = strategy == "ddp" and python and request.options["class"] == "trainer"
    if hooks and not (wanted == "bfloat16" and request.options["device"] == "cpu"):
        return wanted
    if strategy == "fsdp" and python:
        return wanted
    return formats_of(precision_of(plan), strategy).sums


def write(plan: Plan, request: Request) -> Mapping[str, Any] | str:
    """Returns the table `trainer` for YAML, or Python source with a function that makes the trainer."""
    scale = scale_where_float16(plan, plan.compute_dtype, reduced_here(plan, request))
    return _yaml(plan, request, scale) if request.form == "yaml" else _python(plan, request, scale)


def _accelerator(request: Request) -> str:
    return "cpu" if request.options["device"] == "cpu" else "gpu"


def _yaml(plan: Plan, request: Request, scale: LossScale | None) -> dict[str, Any]:
    strategy = request.options["strategy"]
    trainer: dict[str, Any] = {"accelerator": _accelerator(request), "strategy": strategy}
    if strategy == "model_parallel":
        trainer["strategy"] = {"class_path": "lightning.pytorch.strategies.ModelParallelStrategy"}
    if strategy == "deepspeed" and scale:
        trainer["strategy"] = {
            "class_path": "lightning.pytorch.strategies.DeepSpeedStrategy",
            "init_args": strategy_arguments(scale),
        }
    if scale is None or strategy in ("fsdp", "deepspeed"):
        return {"trainer": {**trainer, "precision": precision_of(plan)}}
    device = request.options["device"]
    ours = request.options["scaler"] == "floatwise"
    numbers = (loss_scaler_arguments if ours else grad_scaler_arguments)(scale)
    if "window_log2" in numbers:
        numbers["window_log2"] = list(numbers["window_log2"])  # YAML has no tuples
    scaler = {
        "class_path": "floatwise.torch.LossScaler" if ours else "torch.amp.GradScaler",
        "init_args": {"device": device, **numbers},
    }
    plugin = {
        "class_path": "lightning.pytorch.plugins.MixedPrecision",
        "init_args": {"precision": "16-mixed", "device": device, "scaler": scaler},
    }
    return {"trainer": {**trainer, "plugins": [plugin]}}


def _python(plan: Plan, request: Request, scale: LossScale | None) -> str:
    source = _Source(plan, request)
    arguments: dict[str, Any] = {"accelerator": _accelerator(request)}
    before = ""
    strategy = source.strategy(scale)
    if scale is None or request.options["strategy"] == "deepspeed" or precision_of(plan) != "16-mixed":
        arguments["precision"] = precision_of(plan)
    elif request.options["strategy"] == "fsdp":
        before, arguments["plugins"] = source.sharded_plugin(scale), Dotted("precision")
    else:
        arguments["plugins"] = source.plugin(scale)
    if strategy is not None:
        arguments["strategy"] = strategy
    name = source.name
    made = "\n".join(f"    {line}".rstrip() for line in call_text(name, arguments).splitlines())
    # call_text ends with the parenthesis on a line of its own: the other arguments go before it.
    made = f"{made.removesuffix(')').rstrip()}\n        **others,\n    )".replace(
        f"    {name}(", f"    return {name}(", 1
    )
    doc = _DOC.format(name=name, precision=precision_of(plan))
    text = f'{source.imports()}\n\ndef make_{name.lower()}(**others):\n    """{doc}"""\n{before}{made}\n'
    tf32 = tf32_line(plan)
    return text + (f"\n\n{tf32}" if tf32 else "")


class _Source:
    """Python source with the imports that it turns out to need."""

    def __init__(self, plan: Plan, request: Request) -> None:
        self.plan, self.request = plan, request
        self.room = "lightning.pytorch" if request.options["class"] == "trainer" else "lightning.fabric"
        self.name = "Trainer" if request.options["class"] == "trainer" else "Fabric"
        self.needed = {f"from {self.room} import {self.name}\n"}
        if tf32_line(plan):
            self.needed.add("import torch\n")

    def imports(self) -> str:
        """Returns the import lines, `import` before `from`."""
        return "".join(sorted(self.needed, key=lambda line: (not line.startswith("import "), line)))

    def strategy(self, scale: LossScale | None) -> Any:
        """Returns the argument `strategy`; None for the default."""
        kind, sums = self.request.options["strategy"], self.plan.reductions
        formats = formats_of(precision_of(self.plan), kind)
        if kind == "auto":
            return None
        if kind == "model_parallel":
            return self._of_room("ModelParallelStrategy", {})
        if kind == "deepspeed" and scale:
            return self._of_room("DeepSpeedStrategy", strategy_arguments(scale))
        if kind == "ddp" and reduced_here(self.plan, self.request) in _HOOKS:
            hook = _HOOKS[reduced_here(self.plan, self.request)]
            self.needed.add(f"from {_HOOKS_MODULE} import {hook}\n")
            return self._of_room("DDPStrategy", {"ddp_comm_hook": Dotted(hook)})
        if kind == "fsdp" and (sums.reduce_dtype, sums.buffer_dtype) != (formats.sums, formats.buffers):
            self.needed |= {"import torch\n", "from torch.distributed.fsdp import MixedPrecision\n"}
            policy = {
                "param_dtype": torch_dtype(self.plan.compute_dtype),
                "reduce_dtype": torch_dtype(sums.reduce_dtype),
                "buffer_dtype": torch_dtype(sums.buffer_dtype),
            }
            return self._of_room("FSDPStrategy", {"mixed_precision": nested(call_text("MixedPrecision", policy))})
        return kind

    def plugin(self, scale: LossScale) -> Dotted:
        """Returns a MixedPrecision with the plan's scaler."""
        self.needed.add(f"from {self.room}.plugins import MixedPrecision\n")
        arguments = {"device": self.request.options["device"], "scaler": nested(self._scaler(scale, sharded=False))}
        return nested(call_text("MixedPrecision", arguments, "16-mixed"))

    def sharded_plugin(self, scale: LossScale) -> str:
        """Returns the lines that make an FSDPPrecision with the plan's scaler."""
        self.needed.add(f"from {self.room}.plugins import FSDPPrecision\n")
        scaler = str(nested(self._scaler(scale, sharded=True)))
        return f'    precision = FSDPPrecision("16-mixed")\n{_LATE_SCALER}    precision.scaler = {scaler}\n'

    def _scaler(self, scale: LossScale, *, sharded: bool) -> str:
        line, call = scaler_source(scale, self.request, sharded=sharded)
        self.needed.add(line or "import torch\n")
        return call

    def _of_room(self, name: str, arguments: dict[str, Any]) -> Dotted:
        self.needed.add(f"from {self.room}.strategies import {name}\n")
        return nested(call_text(name, arguments)) if arguments else Dotted(f"{name}()")

# SPDX-License-Identifier: Apache-2.0
"""What a script already does about precision: recognised, reported, and handed to the plan.

Two uses need the same thing. A float32 baseline must not run the script's own autocast, and a plan that is
applied to a script replaces what the script does, so that nothing is cast or scaled twice.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from floatwise.tap.events import Found
from floatwise.tap.frames import users_line
from floatwise.tap.tensors import SIXTEEN_BIT, map_tensors, to_float32

if TYPE_CHECKING:
    from floatwise.tap.core import Tap

__all__ = ["ExistingPrecision"]

_NOT_THE_SCRIPTS = ("floatwise.", "torch.utils.checkpoint", "torch.amp.autocast_mode")


class ExistingPrecision:
    """Replaces the script's own mixed precision while a tap is open.

    - `torch.autocast` regions that are enabled become the plan's, or do nothing; regions with `enabled=False` are
      the script's own islands and stay.
    - `GradScaler` is disabled: the plan scales, or nothing does.
    - Weights and inputs stay float32 where the script asks for float16 or bfloat16; within the plan's autocast
      region they get the plan's dtype.
    - What `torch.compile` returns runs uncompiled when values are inspected.

    Args:
      tap: The open tap; what is found is reported to its observers, once per line.
      compute_dtype: The plan's 16-bit compute dtype, or None to run in float32.
      compiles: False to run the script uncompiled.
    """

    def __init__(self, tap: Tap, compute_dtype: torch.dtype | None = None, compiles: bool = True) -> None:
        self.tap = tap
        self.compute_dtype = compute_dtype
        self.compiles = compiles
        #: The plan's own scaler's state, which the script's checkpoints get in place of its switched-off scaler's.
        self.scaler_state: Callable[[], dict[str, Any] | None] | None = None
        self.load_scaler_state: Callable[[dict[str, Any]], None] | None = None
        #: Says of a tensor in 16 bits whether the plan stores it so.
        self.is_planned: Callable[[torch.Tensor], bool] = lambda tensor: False
        self._reported: set[Found] = set()
        self._raised: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def install(self) -> None:
        """Puts the replacements in place until the tap's patches are undone."""
        patches = self.tap.patches
        patches.replace(torch.amp.autocast_mode.autocast, "__init__", self._autocast)
        patches.replace(torch.amp.autocast_mode.autocast, "__enter__", self._autocast_enter)
        patches.replace(torch.amp.autocast_mode.autocast, "__exit__", self._autocast_exit)
        for name in ("custom_fwd", "custom_bwd"):
            patches.replace(torch.amp, name, self._decorator)
        patches.replace(torch.amp.GradScaler, "__init__", self._grad_scaler)
        patches.replace(torch.amp.GradScaler, "state_dict", self._scaler_state)
        patches.replace(torch.amp.GradScaler, "load_state_dict", self._load_scaler_state)
        for name, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16)):
            patches.replace(torch.Tensor, name, self._tensor_cast)
            patches.replace(nn.Module, name, self._module_cast(dtype))
        patches.replace(torch.Tensor, "to", self._tensor_to)
        patches.replace(torch.Tensor, "type", self._tensor_to)
        patches.replace(nn.Module, "to", self._module_to)
        patches.replace(torch, "set_default_dtype", self._default_dtype)
        patches.replace(torch, "set_default_tensor_type", self._default_tensor_type)
        patches.replace(torch, "compile", self._compile)
        patches.replace(torch.optim.Optimizer, "add_param_group", self._param_group)
        patches.replace(DistributedDataParallel, "__init__", self._wrap_in_ddp)

    def found(self, kind: str, detail: str) -> None:
        """Reports something at the user's current line, once."""
        where = users_line()
        if where is not None and (what := Found(kind, where, detail)) not in self._reported:
            self._reported.add(what)
            self.tap.report(what)

    def _autocast(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(region: Any, *args: Any, **kwargs: Any) -> None:
            original(region, *args, **kwargs)
            # Ours, and those that bring back what was on in the forward: of checkpoints and of custom functions.
            if sys._getframe(1).f_globals.get("__name__", "").startswith(_NOT_THE_SCRIPTS):
                return
            # A CUDA region on a machine without CUDA disables itself; it was asked for all the same.
            if torch.compiler.is_compiling() or not (args[2] if len(args) > 2 else kwargs.get("enabled", True)):
                return
            self.found("found_autocast", _name(region.fast_dtype))
            region._enabled = False
            region.floatwise_replaces = True

        return init

    def _autocast_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(region: Any) -> Any:
            if not getattr(region, "floatwise_replaces", False) or self.compute_dtype is None:
                return original(region)
            for observer in self.tap.observers:
                observer.script_region_entered(region.device)
            return region

        return enter

    def _autocast_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(region: Any, *error: Any) -> Any:
            if not getattr(region, "floatwise_replaces", False) or self.compute_dtype is None:
                return original(region, *error)
            for observer in self.tap.observers:
                observer.script_region_left()
            return None

        return leave

    def _decorator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A custom function for CUDA is one for the CPU where there is no CUDA: autocast's region is there."""

        def decorate(*args: Any, device_type: str, **kwargs: Any) -> Any:
            here = "cpu" if device_type == "cuda" and not torch.cuda.is_available() else device_type
            return original(*args, device_type=here, **kwargs)

        return decorate

    def _grad_scaler(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            # Made as the script asks, so that its settings can still be read.
            original(scaler, *args, **kwargs)
            if type(scaler).__module__.startswith("floatwise."):
                return
            if args[5] if len(args) > 5 else kwargs.get("enabled", True):
                self.found("found_grad_scaler", type(scaler).__name__)
                scaler._floatwise_state = scaler.state_dict()
                scaler._enabled = False

        return init

    def _scaler_state(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def state_dict(scaler: Any) -> dict[str, Any]:
            state = getattr(scaler, "_floatwise_state", None)
            if state is None:
                return original(scaler)  # type: ignore[no-any-return]
            # A checkpoint of this run goes on without Floatwise: it has the scale that was really used.
            mine = self.scaler_state() if self.scaler_state is not None else None
            return {**state, **{k: v for k, v in (mine or {}).items() if k in state}}

        return state_dict

    def _load_scaler_state(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(scaler: Any, state: dict[str, Any]) -> None:
            if getattr(scaler, "_floatwise_state", None) is None:
                original(scaler, state)
            elif state:
                scaler._floatwise_state = dict(state)
                if self.load_scaler_state is not None:
                    self.load_scaler_state(state)

        return load_state_dict

    def _tensor_cast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def cast(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if torch.compiler.is_compiling() or tensor.dtype.is_complex:
                return original(tensor, *args, **kwargs)  # type: ignore[no-any-return]
            return tensor.to(self._sixteen_bit_here(tensor), *args, **kwargs)

        return cast

    def _sixteen_bit_here(self, tensor: torch.Tensor) -> torch.dtype:
        """Returns the dtype that a tensor gets where the script asks for 16 bits."""
        kind = tensor.device.type
        if self.compute_dtype is not None and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            return self.compute_dtype
        return torch.float32

    def _module_cast(self, dtype: torch.dtype) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def cast(module: nn.Module) -> nn.Module:
                self.found("found_low_precision_weights", _name(dtype))
                return module.float()

            return cast

        return make

    def _tensor_to(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            is_asked = not torch.compiler.is_compiling() and not tensor.dtype.is_complex
            # What FSDP2 sends and sums in 16 bits is the plan's.
            if is_asked and _sixteen_bit_in(args, kwargs) and not _called_from("torch.distributed."):
                args, kwargs = _with_instead(self._sixteen_bit_here(tensor), args, kwargs)
            return original(tensor, *args, **kwargs)

        return to

    def _module_to(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def to(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            wanted = _sixteen_bit_in(args, kwargs)
            if wanted is not None:
                self.found("found_low_precision_weights", _name(wanted))
                args, kwargs = _with_instead(torch.float32, args, kwargs)
            return original(module, *args, **kwargs)

        return to

    def _default_dtype(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_default_dtype(dtype: torch.dtype) -> None:
            if dtype in SIXTEEN_BIT:
                self.found("found_default_dtype", _name(dtype))
                dtype = torch.float32
            original(dtype)

        return set_default_dtype

    def _default_tensor_type(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_default_tensor_type(kind: Any) -> None:
            name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
            for sixteen, dtype in (("BFloat16Tensor", torch.bfloat16), ("HalfTensor", torch.float16)):
                if name.endswith(sixteen):
                    self.found("found_default_dtype", _name(dtype))
                    kind = name.replace(sixteen, "FloatTensor")
            original(kind)

        return set_default_tensor_type

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self.found("found_compile", "torch.compile")
            if not self.compiles:
                torch.compiler.set_stance("force_eager")
                self.tap.patches.on_undo(lambda: torch.compiler.set_stance("default"))
            return original(*args, **kwargs)

        return compile_

    def _param_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_param_group(optimizer: Any, group: dict[str, Any]) -> None:
            original(optimizer, group)
            self.raise_weights(optimizer.param_groups[-1]["params"])

        return add_param_group

    def _wrap_in_ddp(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(ddp: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            # Afterwards it would be too late: DDP does not notice a new dtype, and stops summing the gradients.
            self.raise_weights([*module.parameters(), *module.buffers()])
            original(ddp, module, *args, **kwargs)

        return init

    def raise_weights(self, parameters: list[torch.Tensor]) -> None:
        """Makes 16-bit parameters float32 in place, so that the optimizer keeps float32 states."""
        for parameter in parameters:
            if parameter.dtype in SIXTEEN_BIT and not self.is_planned(parameter):
                self.found("found_low_precision_weights", _name(parameter.dtype))
                parameter.data = value = parameter.data.float()
                if hasattr(parameter, "_local_tensor"):  # a DTensor keeps its part and its metadata beside `data`
                    parameter._local_tensor, parameter._spec = value._local_tensor, value._spec  # type: ignore[attr-defined]

    def raise_inputs(self, root: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Makes a model that came in 16 bits (a checkpoint, a file) and its 16-bit inputs float32."""
        if root not in self._raised:
            self._raised.add(root)
            self.raise_weights([*root.parameters(), *root.buffers()])
        return map_tensors(args, to_float32), map_tensors(kwargs, to_float32)


def _called_from(package: str) -> bool:
    """True when the caller of the function that asks belongs to `package`."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith(package)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sixteen_bit_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    for value in (*args, *kwargs.values()):
        dtype = value.dtype if isinstance(value, torch.Tensor) else value
        if isinstance(dtype, torch.dtype) and dtype in SIXTEEN_BIT:
            return dtype
    return None


def _with_instead(
    dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of `to` or `type` with `dtype` where they ask for 16 bits, be it by an example."""
    like = [v for v in (*args[:1], *kwargs.values()) if isinstance(v, torch.Tensor)]
    if like:
        rest = {key: value for key, value in kwargs.items() if value is not like[0]}
        return (like[0].device, dtype, *(a for a in args if a is not like[0])), rest

    def raised(value: Any) -> Any:
        return dtype if isinstance(value, torch.dtype) and value in SIXTEEN_BIT else value

    return tuple(raised(a) for a in args), {k: raised(v) for k, v in kwargs.items()}

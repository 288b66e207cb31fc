# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose 16-bit parameters are updated as if they were float32."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from floatwise.errors import BadInputError
from floatwise.torch.distributed.convert import converting
from floatwise.torch.masters.flat import is_sharded
from floatwise.torch.masters.gradients import raise_float16_grad
from floatwise.torch.masters.granularity import Granularity
from floatwise.torch.masters.master import MODES
from floatwise.torch.masters.model_checkpoints import float32_checkpoints
from floatwise.torch.masters.norms import weights_of_norms
from floatwise.torch.masters.optimizer_checkpoints import keep_states_float32, raise_states
from floatwise.torch.masters.registry import SIXTEEN_BIT, float32_value, give_master, set_float32_value, stored_of
from floatwise.torch.masters.step import MasterStep

__all__ = ["MasterWeights"]


# The hooks that the inner optimizer runs when its state dict is the one that is made or loaded.
_STATE_DICT_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


class MasterWeights(Optimizer):
    """Steps an optimizer of any class on weights that are stored in 16 bits, without losing small updates.

    ```python
    optimizer = MasterWeights(torch.optim.AdamW(model.parameters(), fused=True), dtype=torch.bfloat16, model=model)
    for inputs, target in loader:
        loss = criterion(model(inputs.bfloat16()), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(model.state_dict(), "weights.pt")  # float32, exact: loads into a float32 model
    ```

    The wrapped optimizer sees float32 values and gradients and keeps float32 states. With mode `split` or `float32`
    the weights are, bit for bit, those of float32 training with the same gradients. The wrapped one may be used
    further: learning rate schedulers, hooks and state dicts of either do the same. Its own `step` gives the same
    weights as this one's, with 8 bytes more per parameter while it runs.

    | mode | beside each 16-bit weight | updates |
    |---|---|---|
    | `split` | 2 bytes, the rest of the float32 | as float32; bfloat16 weights only |
    | `float32` | 4 bytes, a float32 copy | as float32; for float16 weights too |
    | `kahan` | 2 bytes, the last rounding error | nearly float32: about 16 bits of mantissa |
    | `stochastic` | nothing | right on average, with noise; bfloat16 weights only |

    A weight that is changed in place from elsewhere, by `copy_`, a clamp or an initialisation, counts as what was
    written, to within half a step of its 16-bit format; elements that were left alone keep their exact values.
    `model.load_state_dict` is exact when `model` is given here.

    With float16 weights and a loss scale, use `floatwise.torch.LossScaler`, which unscales in float32. PyTorch's
    `GradScaler` refuses float16 gradients; call `optimizer.raise_gradients()` before its `unscale_` and `step`.

    Args:
      optimizer: The optimizer, before or after its first step. Its groups and states are shared, not copied.
      mode: Default: `split`, exact and the smallest that is. `float32` for float16 weights. `kahan` and `stochastic`
        spend less precision or memory; measure whether the loss still agrees.
      dtype: The 16-bit format in which float32 parameters of the optimizer are stored from now on: the same
        `Parameter` objects, with their exact values in the master. None (default): only those that are in 16 bits
        already get masters, and the others stay as they are. Of norms with running statistics (BatchNorm) the weights
        stay float32 where `model` is given: their kernels want it.
      model: The model of the parameters, wrapped (DDP, FSDP2, torch.compile) or not. Its `state_dict` then gives
        float32 values and its `load_state_dict` takes them, copies and pickles of it are float32 models, and DDP and
        FSDP2 learn of the new format. Without it the optimizer's own state dict carries the float32 values: load it
        after the model's.
      granularity: How much of the model the optimizer must see at once: `parameter` when each parameter's update
        depends on that parameter alone, else `all`, which is right always and needs 8 bytes per parameter during the
        step. None (default): what is known of PyTorch's own optimizers, and `all` for others.

    Raises:
      BadInputError: A mode that does not serve the format, no parameter to keep a master for, an optimizer that has
        masters already, or no model where one is needed: with several processes or sharded parameters.
    """

    # A fused optimizer would skip a step inside its kernel, which is not what runs here: scalers decide beforehand.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "split",
        *,
        dtype: torch.dtype | None = None,
        model: nn.Module | None = None,
        granularity: Granularity | None = None,
    ) -> None:
        _check(optimizer, dtype, granularity)
        _check_mode(mode)
        self.inner = optimizer
        self.mode = mode
        self.dtype = dtype
        self._model = model
        self._granularity = granularity
        self._stepping = MasterStep(optimizer, granularity)
        # Makes the tables of hooks that Optimizer's methods look for; groups and states are the inner one's.
        super().__setstate__({})
        for table in _STATE_DICT_HOOKS:
            setattr(self, table, getattr(optimizer, table))
        self._handles: list[Any] = []
        self._adopt(p for group in optimizer.param_groups for p in group["params"])
        if not any(stored_of(p) is not None for group in self.param_groups for p in group["params"]):
            raise BadInputError(
                "got an optimizer without 16-bit parameters, and no dtype; give dtype=torch.bfloat16 to store its "
                "float32 parameters in 16 bits"
            )
        raise_states(optimizer)
        self._hooks = (_BeforeStep(self._stepping), _AfterStep(self._stepping))
        self._handles += keep_states_float32(self._stepping)
        self._handles.append(optimizer.register_step_pre_hook(self._hooks[0]))
        self._handles.append(optimizer.register_step_post_hook(self._hooks[1]))

    # The inner optimizer's own, under the names that schedulers, scalers and trainers read and write.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's groups."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    @property
    def state(self) -> Any:
        """The inner optimizer's states, by parameter."""
        return self.inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self.inner.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The inner optimizer's defaults."""
        return self.inner.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.inner.defaults = defaults

    def __getattr__(self, name: str) -> Any:
        """Gives what only the inner optimizer has; its methods, such as SAM's `first_step`, see float32 parameters."""
        if name in ("inner", "_stepping") or name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self.inner, name)
        is_method = inspect.ismethod(value) and value.__self__ is self.inner and not name.startswith("_")
        return self._stepping.with_stand_ins(value) if is_method else value

    @override
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters; returns the loss of `closure`, which is evaluated as the inner optimizer wants."""
        # What was frozen, and has been unfrozen.
        self._adopt([p for group in self.param_groups for p in group["params"] if p.grad is not None and _is_new(p)])
        inner: Any = self.inner
        inner._opt_called = True  # a scheduler made with the inner optimizer looks for its first step there
        args: tuple[Any, ...] = (inner,) if closure is None else (inner, closure)
        kwargs: dict[str, Any] = {}
        for hook in inner._optimizer_step_pre_hooks.values():
            if hook not in self._hooks:
                args, kwargs = hook(inner, args, kwargs) or (args, kwargs)
        loss = self._stepping.run(*args[1:], **kwargs)
        for hook in inner._optimizer_step_post_hooks.values():
            if hook not in self._hooks:
                hook(inner, args, kwargs)
        return loss

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, as the inner optimizer does."""
        self._stepping.recover()
        self.inner.zero_grad(set_to_none=set_to_none)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state dict, with float32 states and what a resume needs beside it."""
        return self.inner.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state dict of this or of the bare optimizer; states keep the formats they were saved in.

        Warns:
          UserWarning: The float32 values are neither in it nor in the model's own state dict.
        """
        self.inner.load_state_dict(state_dict)

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the inner optimizer; its parameters get masters as those of the constructor did."""
        self.inner.add_param_group(param_group)
        self._adopt(self.inner.param_groups[-1]["params"])

    def master(self, parameter: Tensor) -> Tensor:
        """Returns the exact float32 value of a parameter, as a new tensor of its shape and sharding."""
        return float32_value(parameter)

    def raise_gradients(self) -> None:
        """Makes float16 gradients float32, in place: unscaling them in float16 would lose what the loss scale saved.

        `floatwise.torch.LossScaler` calls this; before `unscale_` or `step` of PyTorch's `GradScaler`, call it
        yourself.

        Raises:
          BadInputError: This torch, before 2.10, does not let a gradient differ from its parameter.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                if stored_of(parameter) is not None:
                    raise_float16_grad(parameter)

    def close(self) -> None:
        """Takes the hooks off model and optimizer. Parameters and masters stay as they are."""
        self._stepping.end()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __repr__(self) -> str:
        return f"MasterWeights({self.inner!r}, mode={self.mode!r})"

    def __reduce__(self) -> Any:
        # Copied and pickled with the exact values: a copied or pickled model has float32 parameters.
        self._stepping.end()
        with_master = [p for group in self.param_groups for p in group["params"] if stored_of(p) is not None]
        dtypes = [p.dtype for p in with_master]
        values = [float32_value(p) for p in with_master]
        options = {"dtype": self.dtype, "model": self._model, "granularity": self._granularity}
        return _again, (self.inner, self.mode, options, with_master, dtypes, values)

    def _adopt(self, parameters: Iterable[Tensor]) -> None:
        wanted = []
        norms = {id(p) for p in weights_of_norms(self._model)} if self._model is not None else set()
        for parameter in parameters:
            if id(parameter) in norms and parameter.dtype is torch.float32:
                continue
            if parameter.dtype in SIXTEEN_BIT and parameter.requires_grad:
                wanted.append((parameter, parameter.dtype))
            elif self.dtype is not None and parameter.dtype is torch.float32:
                wanted.append((parameter, self.dtype))
        if not wanted:
            return
        self._check_model(wanted)
        with ExitStack() as stack:
            convert = None if self._model is None else stack.enter_context(converting(self._model))
            for parameter, dtype in wanted:
                give_master(parameter, self.mode, dtype, convert)
        if self._model is not None:
            self._handles.append(float32_checkpoints(self._model))

    def _check_model(self, wanted: Sequence[tuple[Tensor, torch.dtype]]) -> None:
        if self._model is not None:
            return
        if any(is_sharded(p) and stored_of(p) is None for p, _ in wanted):
            raise BadInputError("got sharded parameters and no model; give model=..., whose checkpoints need them")
        changed = any(p.dtype is not dtype for p, dtype in wanted)
        if changed and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise BadInputError(
                "got dtype and no model, with several processes; give model=..., so that DDP hears of the new format: "
                "otherwise it would go on without summing these gradients"
            )


class _BeforeStep:
    """Puts float32 stand-ins in place for a step that is called on the inner optimizer."""

    def __init__(self, stepping: MasterStep) -> None:
        self._stepping = stepping

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self._stepping.is_stepping:
            return None
        self._stepping.begin()
        around = self._stepping.around
        return tuple(around(a) if callable(a) and a is not optimizer else a for a in args), {
            name: around(value) if callable(value) else value for name, value in kwargs.items()
        }


class _AfterStep:
    """Takes them out again."""

    def __init__(self, stepping: MasterStep) -> None:
        self._stepping = stepping

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._stepping.is_stepping:
            self._stepping.end()


def _again(
    inner: Optimizer,
    mode: str,
    options: dict[str, Any],
    parameters: Sequence[Tensor],
    dtypes: Sequence[torch.dtype],
    values: Sequence[Tensor],
) -> MasterWeights:
    for parameter, dtype, value in zip(parameters, dtypes, values, strict=True):
        give_master(parameter, mode, dtype)
        set_float32_value(parameter, value)
    return MasterWeights(inner, mode, **options)


def _is_new(parameter: Tensor) -> bool:
    return parameter.dtype in SIXTEEN_BIT and stored_of(parameter) is None


def _check_mode(mode: object) -> None:
    if not isinstance(mode, str):
        raise BadInputError(
            f"got {mode!r} as the mode, which comes second; expected one of {', '.join(MODES)}. A format is given by "
            "name: dtype=torch.bfloat16"
        )


def _check(optimizer: Optimizer, dtype: torch.dtype | None, granularity: str | None) -> None:
    if not isinstance(optimizer, Optimizer):
        raise BadInputError(f"got {type(optimizer).__name__} as the optimizer; expected a torch.optim.Optimizer")
    if isinstance(optimizer, MasterWeights) or any(
        isinstance(hook, _BeforeStep) for hook in optimizer._optimizer_step_pre_hooks.values()
    ):
        raise BadInputError("got an optimizer that has master weights already; use it as it is")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise BadInputError("got differentiable=True, which master weights would end; make the optimizer without it")
    if dtype not in (None, *SIXTEEN_BIT):
        raise BadInputError(f"got dtype {dtype}; expected torch.bfloat16, torch.float16 or None")
    if granularity not in (None, "parameter", "all"):
        raise BadInputError(f"got granularity {granularity!r}; expected 'parameter', 'all' or None")

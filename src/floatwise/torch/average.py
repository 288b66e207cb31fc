# SPDX-License-Identifier: Apache-2.0
"""An exponential moving average of a model's weights, in float32 whatever format they are stored in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from floatwise.errors import BadInputError
from floatwise.tap.walk import walk_modules
from floatwise.torch.masters import float32_value, set_float32_value, stored_of
from floatwise.torch.masters.flat import local
from floatwise.torch.step_info import StepInfo

__all__ = ["WeightAverage"]

# Elements that are raised to float32 at a time, 64 MiB. Chosen: kernels of that size lose nothing to their start.
_ELEMENTS = 2**24


class WeightAverage:
    """The exponential moving average (EMA) of the weights over the steps: `decay` times itself plus the rest new.

    An average in 16 bits stands still: at a decay of 0.9999 what is to be added is smaller than half a step of
    bfloat16. So it is kept in float32 (float64 for float64 weights). Weights in 16 bits count with their exact
    values when they have master weights.

    ```python
    average = WeightAverage(model, decay=0.9999)     # after prepare
    for inputs, target in loader:
        ...
        average.update(precision.step())             # a skipped step is passed over
    with average.applied():
        evaluate(model)                              # the model itself, with averaged weights
    torch.save(average.model_state_dict(), "averaged.pt")
    ```

    It begins with the weights that the model has now. Frozen weights are not averaged; one that is unfrozen later
    joins with the value it has then. Names are those of the model without what wrappers (DDP, FSDP, torch.compile)
    add, so a state loads whichever is used. Under FSDP each rank averages its shards, with nothing to communicate.

    Args:
      model: The model, on its device, wrapped or not.
      decay: How much of the average is kept in an update: about 1 / (1 - decay) of the last steps count. Default
        0.999, as in `torch.optim.swa_utils.get_ema_multi_avg_fn` (torch 2.13). 0.9999 for runs of 100,000 steps
        and more, such as diffusion models.
      warmup: True begins with smaller decays, (1 + updates) / (10 + updates) where that is less than `decay`, so
        that the first weights are soon forgotten; source: `tf.train.ExponentialMovingAverage(num_updates=...)`.
        Default False.
      average_buffers: True averages floating-point buffers, such as BatchNorm's statistics, too. Default False:
        `applied` evaluates with the model's own, as `AveragedModel(use_buffers=False)` does.

    Attributes:
      decay: See above; may be changed.
      updates: How many steps have been averaged.

    Raises:
      BadInputError: A decay outside [0, 1), or a model without trainable weights.
    """

    def __init__(
        self, model: nn.Module, decay: float = 0.999, *, warmup: bool = False, average_buffers: bool = False
    ) -> None:
        if not 0.0 <= decay < 1.0:
            raise BadInputError(f"got decay {decay!r}; expected a number from 0 up to, not including, 1, such as 0.999")
        self.decay = decay
        self.updates = 0
        self._model = model
        self._warmup = warmup
        self._average_buffers = average_buffers
        self._averages: dict[str, Tensor] = {}
        self._averages = {name: _exact(tensor) for name, tensor in self._averaged().items()}
        self._applied = False
        if not self._averages:
            raise BadInputError(f"got {type(model).__name__}, a model without trainable weights to average")

    @torch.no_grad()
    def update(self, info: StepInfo | None = None) -> None:
        """Takes in the model's weights after a step.

        Args:
          info: What `Precision.step` returned; nothing happens unless it stepped. None (default) says that the
            optimizer has stepped.

        Raises:
          BadInputError: Within `applied`, where the model has the averaged weights.
        """
        self._check_not_applied()
        if info is not None and not info.stepped:
            return
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self._warmup else self.decay
        self.updates += 1
        for averages, values in self._pairs():
            torch._foreach_lerp_(averages, values, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the model has the averaged weights, to evaluate it; afterwards it has its own, exactly.

        The model's weights are copied meanwhile. Do not train within.

        Raises:
          BadInputError: Within another `applied`.
        """
        self._check_not_applied()
        tensors = {name: tensor for name, tensor in _named_tensors(self._model).items() if name in self._averages}
        own = {name: _exact(tensor) for name, tensor in tensors.items()}
        self._applied = True
        try:
            _write(tensors, self._averages)
            yield
        finally:
            _write(tensors, own)
            self._applied = False

    def model_state_dict(self) -> dict[str, Tensor]:
        """Returns the averaged weights as a state dict of the model: float32, and loadable without Floatwise.

        Weights and buffers that are not averaged are the model's own. Names have no wrappers' prefixes.
        """
        self._check_not_applied()
        tensors = _named_tensors(self._model, once=False)
        kept = {id(tensors[name]): average for name, average in self._averages.items()}
        return {n: kept[id(t)].clone() if id(t) in kept else _exact(t) for n, t in tensors.items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns what an exact resume needs: the averages by name, the decay and the number of updates."""
        return {"decay": self.decay, "updates": self.updates, "averages": dict(self._averages)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of `state_dict`, with its decay.

        Raises:
          BadInputError: `state` is none, or its weights are not the model's.
        """
        self._check_not_applied()
        if not {"decay", "updates", "averages"} <= set(state):
            raise BadInputError(
                f"got a state with the keys {sorted(state)}; expected what WeightAverage.state_dict returned"
            )
        saved: dict[str, Tensor] = state["averages"]
        tensors = _named_tensors(self._model)
        wrong = sorted(name for name in saved if name not in tensors or tensors[name].shape != saved[name].shape)
        missing = sorted(set(self._averages) - set(saved))
        if wrong or missing:
            which = f"{wrong[0]!r}, which the model has not in this shape" if wrong else f"no {missing[0]!r}"
            raise BadInputError(f"got a state with {which}; load the state of an average of the same model")
        for name, value in saved.items():
            average = self._averages.setdefault(name, _exact(tensors[name]))
            local(average).copy_(local(value))
        self.decay, self.updates = state["decay"], state["updates"]

    def _averaged(self) -> dict[str, Tensor]:
        """Returns the model's tensors that have an average, or are to have one."""
        tensors = _named_tensors(self._model)
        return {n: t for n, t in tensors.items() if n in self._averages or self._is_to_average(t)}

    def _is_to_average(self, tensor: Tensor) -> bool:
        if isinstance(tensor, nn.Parameter):
            return tensor.requires_grad
        return self._average_buffers and tensor.is_floating_point()

    def _pairs(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yields averages and the weights they take in, in lists that one foreach call takes."""
        groups: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        elements: dict[Any, int] = {}
        for name, tensor in self._averaged().items():
            if name not in self._averages:
                self._averages[name] = _exact(tensor)
                continue
            average = local(self._averages[name])
            kind = (average.device, average.dtype)
            groups.setdefault(kind, []).append((average, tensor))
            elements[kind] = elements.get(kind, 0) + average.numel()
            if elements[kind] >= _ELEMENTS:
                yield _raised(groups.pop(kind))
                elements[kind] = 0
        yield from map(_raised, groups.values())

    def _check_not_applied(self) -> None:
        if self._applied:
            raise BadInputError("got a call within applied(), where the model has the averaged weights; leave it first")


def _named_tensors(model: nn.Module, once: bool = True) -> dict[str, Tensor]:
    """Returns parameters and persistent buffers by name, without wrappers' prefixes.

    Args:
      model: The model.
      once: Whether a tensor with several names has the first only.
    """
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, module in walk_modules(model):
        buffers = {n: b for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set}
        for name, tensor in {**module._parameters, **buffers}.items():
            if tensor is not None and not (once and id(tensor) in seen):
                seen.add(id(tensor))
                named[f"{path}.{name}" if path else name] = tensor
    return named


def _raised(pairs: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    values = [local(t) if _has_own_value(t) else local(float32_value(t)) for _, t in pairs]
    return [average for average, _ in pairs], values


def _exact(tensor: Tensor) -> Tensor:
    """Returns a copy of the exact value, in float32 where the tensor is in 16 bits."""
    return tensor.detach().clone() if _has_own_value(tensor) else float32_value(tensor)


def _has_own_value(tensor: Tensor) -> bool:
    return stored_of(tensor) is None and tensor.dtype not in (torch.float16, torch.bfloat16)


@torch.no_grad()
def _write(tensors: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if stored_of(tensor) is None:
            local(tensor).copy_(local(values[name]))
        else:
            set_float32_value(tensor, values[name])
    torch.clear_autocast_cache()  # within a region autocast does not notice that weights have changed

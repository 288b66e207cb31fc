# SPDX-License-Identifier: Apache-2.0
"""Which module is running, and samples of what each one takes and returns."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from floatwise.tap.tensors import floating_tensors
from floatwise.tap.walk import walk_modules

__all__ = ["SAMPLED_ELEMENTS", "ModuleCall", "ModuleTrace", "sampled"]

#: Elements of a tensor that are kept. The error of a signal-to-noise ratio from so many values is under 0.2 dB
#: (the relative deviation of a mean of n squares of normal values is sqrt(2/n)).
SAMPLED_ELEMENTS = 1 << 12


@dataclass(frozen=True)
class ModuleCall:
    """Samples of one call: the tensors that came in and those that went out, in float32."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class ModuleTrace:
    """Follows a model's calls by hooks on its modules until `close()`.

    Args:
      model: The model; None to attach one later.
      samples: Whether to keep samples of inputs and outputs.

    Attributes:
      calls: Samples by module path and number of the call, in the order in which the calls ended.
      samples: Whether samples are kept.
      paused: True while this looks at tensors itself; operators called meanwhile are not the model's.
    """

    def __init__(self, model: nn.Module | None = None, samples: bool = False) -> None:
        self.calls: dict[tuple[str, int], ModuleCall] = {}
        self.samples = samples
        self.paused = False
        self._counts: Counter[str] = Counter()
        self._stack: list[tuple[str, tuple[Tensor, ...]]] = []
        self._handles: list[RemovableHandle] = []
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        if model is not None:
            self.attach(model)

    def attach(self, model: nn.Module, name_of: Callable[[nn.Module], str] | None = None) -> None:
        """Follows a model's modules; those that are followed already are passed over.

        Args:
          model: The model.
          name_of: Gives the path of a module where `model` is one of several.
        """
        for path, module in walk_modules(model):
            if module not in self._seen:
                self._seen.add(module)
                self._handles += self._hooks(path if name_of is None else name_of(module), module)

    @property
    def path(self) -> str:
        """Path of the innermost module that is running; empty in the outermost one and outside of all."""
        return self._stack[-1][0] if self._stack else ""

    def close(self) -> None:
        """Takes the hooks off the model; doing so twice is harmless."""
        for handle in self._handles:
            handle.remove()

    def _hooks(self, path: str, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._stack.append((path, self._look((args, kwargs))))

        def left(module: nn.Module, args: Any, output: Any) -> None:
            _, inputs = self._stack.pop()
            if self.samples and output is not None:
                self.calls[path, self._counts[path]] = ModuleCall(inputs, self._look(output))
                self._counts[path] += 1

        enter = module.register_forward_pre_hook(entered, with_kwargs=True)
        return enter, module.register_forward_hook(left, always_call=True)

    def _look(self, values: Any) -> tuple[Tensor, ...]:
        if not self.samples:
            return ()
        self.paused = True
        try:
            return tuple(sampled(tensor) for tensor in floating_tensors(values))
        finally:
            self.paused = False


def sampled(tensor: Tensor, most: int = SAMPLED_ELEMENTS) -> Tensor:
    """Returns a copy of up to `most` values, evenly strided, in float32 on the CPU."""
    flat = tensor.detach().reshape(-1)
    # An odd stride does not fall in step with power-of-two rows and see one column only.
    stride = (flat.numel() // most) | 1 if flat.numel() > most else 1
    return flat[::stride].to("cpu", torch.float32, copy=True)

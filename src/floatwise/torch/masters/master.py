# SPDX-License-Identifier: Apache-2.0
"""What keeps a weight that is stored in 16 bits as accurate as float32: one class per mode."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from floatwise.torch.masters.flat import cast
from floatwise.torch.masters.split import join_halves, quiet_nans, split_halves, widen

__all__ = ["MODES", "Copy", "Kahan", "Master", "Split", "Stochastic"]


class Master(ABC):
    """The float32 value of one stored weight.

    `stored` is the weight itself: 16-bit, of shape [n], in memory order. A stretch of it is `stored[start:stop]`. It
    may be changed from elsewhere, by `copy_`, a clamp or an initialisation, with nothing said. Then its value is what
    was written, to within half a step of its format, and elements that were left alone keep their exact values.

    Attributes:
      mode: The name of the mode.
      dtypes: The formats it can stand beside.
      extra: What is kept beside the weight, of shape [n]; None for nothing.
    """

    mode: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.bfloat16, torch.float16)

    def __init__(self, extra: Tensor | None = None) -> None:
        self.extra = extra

    @classmethod
    @abstractmethod
    def beside(cls, stored: Tensor) -> Master:
        """Returns the master of a weight whose float32 value is that of `stored`."""

    @abstractmethod
    def read(self, out: Tensor, stored: Tensor, start: int, stop: int) -> None:
        """Writes the float32 value of a stretch into `out`."""

    @abstractmethod
    def write(self, value: Tensor, stored: Tensor, start: int, stop: int) -> None:
        """Writes the updated float32 `value` into a stretch; `value` is used up."""

    def set(self, value: Tensor, stored: Tensor) -> None:
        """Writes a float32 `value` that no update led to, into all of the weight; `value` is used up."""
        self.write(value, stored, 0, stored.numel())


class Split(Master):
    """The 16 trailing bits: with the bfloat16 weight, the exact float32 in 4 bytes. See `split`."""

    mode = "split"
    dtypes = (torch.bfloat16,)
    extra: Tensor

    @classmethod
    @override
    def beside(cls, stored: Tensor) -> Split:
        return cls(torch.zeros_like(stored, dtype=torch.int16))

    @override
    def read(self, out: Tensor, stored: Tensor, start: int, stop: int) -> None:
        join_halves(out, stored[start:stop], self.extra[start:stop])

    @override
    def write(self, value: Tensor, stored: Tensor, start: int, stop: int) -> None:
        split_halves(value, stored[start:stop], self.extra[start:stop])


class Copy(Master):
    """A second weight in float32: 4 more bytes, for float16 weights too (Micikevicius et al. 2018, section 3.1)."""

    mode = "float32"
    extra: Tensor

    @classmethod
    @override
    def beside(cls, stored: Tensor) -> Copy:
        return cls(stored.float())

    @override
    def read(self, out: Tensor, stored: Tensor, start: int, stop: int) -> None:
        _read_where_it_rounds(out, self.extra[start:stop], stored[start:stop])

    @override
    def write(self, value: Tensor, stored: Tensor, start: int, stop: int) -> None:
        self.extra[start:stop].copy_(value)
        stored[start:stop].copy_(value)


class Kahan(Master):
    """The rounding error of the last update, in the weight's own format.

    Zamirai et al. 2020, arXiv 2010.06192, algorithm 1, written as a sum: the value is weight + error. Beside bfloat16
    that is 16 bits of mantissa; beside float16, 22 for weights about 1 and fewer for smaller ones, since no error is
    below 2**-24. The pair is kept so that the sum is exact in float32, and a checkpoint of it gives the pair back.
    """

    mode = "kahan"
    extra: Tensor

    @classmethod
    @override
    def beside(cls, stored: Tensor) -> Kahan:
        return cls(torch.zeros_like(stored))

    @override
    def read(self, out: Tensor, stored: Tensor, start: int, stop: int) -> None:
        total = self.extra[start:stop].float().add_(stored[start:stop])
        _read_where_it_rounds(out, total, stored[start:stop])

    @override
    def write(self, value: Tensor, stored: Tensor, start: int, stop: int) -> None:
        weight, error = stored[start:stop], self.extra[start:stop]
        _round(value, weight, error)
        # Rounding the error may have carried it to half a step of the weight, where the sum rounds the other way.
        widen(value, weight)
        _round(value.add_(error), weight, error)


class Stochastic(Master):
    """Nothing: an update is rounded up or down by chance, in proportion to how near it is.

    Gupta et al. 2015, arXiv 1502.02551, section 3. The chance is a pure function of `chance` and the stretch, so a
    resumed run repeats it.

    Attributes:
      chance: What numbers are drawn by: the step, which weight, which shard of it. Replicas of a weight have the same.
    """

    mode = "stochastic"
    dtypes = (torch.bfloat16,)

    def __init__(self, extra: Tensor | None = None) -> None:
        super().__init__(extra)
        self.chance: tuple[int, ...] = ()

    @classmethod
    @override
    def beside(cls, stored: Tensor) -> Stochastic:
        return cls()

    @override
    def read(self, out: Tensor, stored: Tensor, start: int, stop: int) -> None:
        widen(out, stored[start:stop])

    @override
    def write(self, value: Tensor, stored: Tensor, start: int, stop: int) -> None:
        quiet_nans(value)  # one with more bits could become a number below
        bits = value.view(torch.int32)
        # A number below one step of bfloat16 is added, and the 16 trailing bits are cut off.
        bits.add_(self._drawn(value, start)).add_(2**15)
        bits.bitwise_and_(-(2**16))
        stored[start:stop].copy_(value)

    @override
    def set(self, value: Tensor, stored: Tensor) -> None:
        stored.copy_(value)

    def _drawn(self, like: Tensor, start: int) -> Tensor:
        """Returns as many numbers from -2**15 to 2**15 - 1, each as likely."""
        # Digested, since generators on CPU heed the lower 32 bits of a seed only (torch 2.13), and those of sums and
        # products of small numbers are soon the same.
        digest = hashlib.blake2b(repr((*self.chance, start)).encode(), digest_size=8).digest()
        generator = torch.Generator(like.device).manual_seed(int.from_bytes(digest, "little"))
        # Four at a time.
        drawn = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
        drawn.random_(-(2**63), None, generator=generator)
        return drawn.view(torch.int16)[: like.numel()].to(torch.int32)


def _read_where_it_rounds(out: Tensor, value: Tensor, weight: Tensor) -> None:
    """Writes `value` where `weight` is its rounding; elsewhere `weight`, which was changed by others."""
    # Bits instead of a mask of booleans, for which PyTorch's CPU operators are ten times slower (2.13).
    other = cast(value, weight.dtype).view(torch.int16).bitwise_xor_(weight.view(torch.int16))
    other = other.neg().bitwise_or_(other).bitwise_right_shift_(15).to(torch.int32)  # all bits where they differ
    widen(out, weight)
    bits = out.view(torch.int32)
    bits.bitwise_xor_((value.view(torch.int32) ^ bits).bitwise_and_(other.bitwise_not_()))


def _round(value: Tensor, weight: Tensor, error: Tensor) -> None:
    """Writes the nearest to `value` into `weight` and the rest into `error`; `value` is used up."""
    weight.copy_(value)
    error.copy_(value.sub_(weight))
    error.nan_to_num_(0.0, 0.0, 0.0)  # inf - inf: the weight alone says it


MODES: dict[str, type[Master]] = {kind.mode: kind for kind in (Split, Copy, Kahan, Stochastic)}
"""The class of each mode that `Weights.master` in a plan can name."""

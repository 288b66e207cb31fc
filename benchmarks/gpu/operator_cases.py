# SPDX-License-Identifier: Apache-2.0
"""A call with small inputs for every operator of CUDA autocast's lists, and for some that no list names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from floatwise.torch.cuda_lists import FLOAT32, FLOAT32_APPEND_DTYPE, FLOAT32_SET_DTYPE, LOWER, WIDEST

__all__ = ["LISTED", "UNLISTED", "OperatorCase", "cases", "operator"]


class Draw:
    """Draws inputs between 0.2 and 0.8, which is in the domain of every operator here.

    Args:
      dtypes: Of the floating-point inputs in their order; the last one of all further inputs.
    """

    def __init__(self, *dtypes: torch.dtype) -> None:
        self._dtypes = list(dtypes)
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        """Returns the next floating-point input."""
        dtype = self._dtypes.pop(0) if len(self._dtypes) > 1 else self._dtypes[0]
        return (torch.rand(shape, generator=self._generator) * 0.6 + 0.2).to(dtype)

    def classes(self, *shape: int) -> Tensor:
        """Returns class numbers from 0 to 2."""
        return torch.randint(0, 3, shape, generator=self._generator)

    def signs(self, *shape: int) -> Tensor:
        """Returns 1 and -1."""
        return torch.randint(0, 2, shape, generator=self._generator) * 2 - 1


Arguments = Callable[[Draw], tuple[Any, ...]]


def _alike(names: str, arguments: Arguments) -> dict[str, Arguments]:
    return {name: arguments for name in names.split()}


def _image(dimensions: int, *rest: Any) -> Arguments:
    return lambda d: (d(1, 2, *[3] * dimensions), [6] * dimensions, *rest)


def _filtered(dimensions: int) -> Arguments:
    return lambda d: (d(1, 4, *[8] * dimensions), d(4, 4, *[3] * dimensions))


_CONVOLVED: Arguments = lambda d: (d(1, 4, 8, 8), d(4, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)  # noqa: E731

_LOWER: dict[str, Arguments] = {
    "convolution": _CONVOLVED,
    "_convolution": lambda d: (*_CONVOLVED(d), False, False, True, True),
    "_convolution.deprecated": lambda d: (*_CONVOLVED(d), False, False, True),
    **{f"conv{n}d": _filtered(n) for n in (1, 2, 3)},
    "conv_tbc": lambda d: (d(8, 2, 4), d(3, 4, 4), d(4)),
    "conv_transpose1d": _filtered(1),
    "conv_transpose2d.input": _filtered(2),
    "conv_transpose3d.input": _filtered(3),
    "prelu": lambda d: (d(4, 8), d(8)),
    "addbmm": lambda d: (d(8, 8), d(2, 8, 8), d(2, 8, 8)),
    "addmm": lambda d: (d(8, 8), d(8, 8), d(8, 8)),
    "addmv": lambda d: (d(8), d(8, 8), d(8)),
    "addr": lambda d: (d(8, 8), d(8), d(8)),
    "baddbmm": lambda d: (d(2, 8, 8), d(2, 8, 8), d(2, 8, 8)),
    "bmm": lambda d: (d(2, 8, 8), d(2, 8, 8)),
    "chain_matmul": lambda d: ([d(8, 8), d(8, 8), d(8, 8)],),
    "einsum": lambda d: ("ij,jk->ik", [d(8, 8), d(8, 8)]),
    "linalg_multi_dot": lambda d: ([d(8, 8), d(8, 8), d(8, 8)],),
    "linalg_vecdot": lambda d: (d(4, 8), d(4, 8)),
    "linear": lambda d: (d(4, 8), d(8, 8), d(8)),
    **_alike("matmul mm", lambda d: (d(8, 8), d(8, 8))),
    "mv": lambda d: (d(8, 8), d(8)),
    "_thnn_fused_gru_cell": lambda d: (d(2, 24), d(2, 24), d(2, 8)),
    "_thnn_fused_lstm_cell": lambda d: (d(2, 32), d(2, 32), d(2, 8)),
    "gru_cell": lambda d: (d(2, 8), d(2, 8), d(24, 8), d(24, 8), d(24), d(24)),
    "lstm_cell": lambda d: (d(2, 8), [d(2, 8), d(2, 8)], d(32, 8), d(32, 8), d(32), d(32)),
    **_alike("rnn_relu_cell rnn_tanh_cell", lambda d: (d(2, 8), d(2, 8), d(8, 8), d(8, 8), d(8), d(8))),
    **_alike(
        "scaled_dot_product_attention _scaled_dot_product_flash_attention",
        lambda d: (d(1, 2, 8, 16), d(1, 2, 8, 16), d(1, 2, 8, 16)),
    ),
}

_FLOAT32: dict[str, Arguments] = {
    **_alike(
        "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan softplus",
        lambda d: (d(4, 8),),
    ),
    **_alike(
        "cosine_similarity dist cdist binary_cross_entropy_with_logits kl_div huber_loss l1_loss mse_loss"
        " smooth_l1_loss pow.Tensor_Tensor",
        lambda d: (d(4, 8), d(4, 8)),
    ),
    "pow.Scalar": lambda d: (2.0, d(4, 8)),
    "pow.Tensor_Scalar": lambda d: (d(4, 8), 3),
    "logsumexp": lambda d: (d(4, 8), [1]),
    "group_norm": lambda d: (d(2, 4, 3), 2),
    **_alike("layer_norm rms_norm", lambda d: (d(4, 8), [8])),
    "native_layer_norm": lambda d: (d(4, 8), [8], None, None, 1e-5),
    **_alike("frobenius_norm.dim nuclear_norm.dim", lambda d: (d(4, 8), [0, 1])),
    **_alike("nuclear_norm pdist prod sum linalg_matrix_norm.str_ord", lambda d: (d(4, 8),)),
    "renorm": lambda d: (d(4, 8), 2, 0, 1.0),
    "cosine_embedding_loss": lambda d: (d(4, 8), d(4, 8), d.signs(4)),
    **_alike("hinge_embedding_loss soft_margin_loss", lambda d: (d(4, 8), d.signs(4, 8))),
    "margin_ranking_loss": lambda d: (d(4), d(4), d.signs(4)),
    **_alike("multi_margin_loss nll_loss", lambda d: (d(4, 8), d.classes(4))),
    "multilabel_margin_loss": lambda d: (d(4, 8), d.classes(4, 8)),
    "nll_loss2d": lambda d: (d(2, 3, 4, 4), d.classes(2, 4, 4)),
    "poisson_nll_loss": lambda d: (d(4, 8), d(4, 8), True, False, 1e-8, 1),
    "triplet_margin_loss": lambda d: (d(4, 8), d(4, 8), d(4, 8)),
    **{f"upsample_nearest{n}d": _image(n) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": _image(n) for n in (1, 2, 3)},
    "upsample_linear1d": _image(1, False),
    "upsample_trilinear3d": _image(3, False),
    **_alike("upsample_bilinear2d _upsample_bilinear2d_aa upsample_bicubic2d _upsample_bicubic2d_aa", _image(2, False)),
    **_alike("prod.dim_int cumprod cumsum", lambda d: (d(4, 8), 1)),
    "sum.dim_IntList": lambda d: (d(4, 8), [1]),
    **_alike("softmax.int log_softmax.int", lambda d: (d(4, 8), -1)),
    **_alike("linalg_vector_norm norm.Scalar", lambda d: (d(4, 8), 3)),
    "linalg_matrix_norm": lambda d: (d(4, 8), 1),
    "norm.ScalarOpt_dim": lambda d: (d(4, 8), 3, [1]),
}

_WIDEST: dict[str, Arguments] = {
    **_alike("addcdiv addcmul", lambda d: (d(4, 8), d(4, 8), d(4, 8))),
    "atan2": lambda d: (d(4, 8), d(4, 8)),
    "bilinear": lambda d: (d(4, 8), d(4, 8), d(5, 8, 8), None),
    "cross": lambda d: (d(4, 3), d(4, 3), 1),
    **_alike("dot vdot", lambda d: (d(8), d(8))),
    "grid_sampler": lambda d: (d(1, 1, 4, 4), d(1, 2, 2, 2), 0, 0, False),
    "index_put": lambda d: (d(4, 8), [torch.tensor([0])], d(1, 8)),
    "scatter_add": lambda d: (d(4, 8), 0, torch.zeros(4, 8, dtype=torch.int64), d(4, 8)),
    "tensordot": lambda d: (d(8, 8), d(8, 8), [1], [0]),
}

LISTED: dict[str, dict[str, Arguments]] = {"lower": _LOWER, "float32": _FLOAT32, "widest": _WIDEST}
"""By the rule of the list."""

#: On no list, with 16-bit inputs: what CUDA refuses, what keeps its dtype there, and what the CPU treats on its own.
UNLISTED: dict[str, Arguments] = {
    "binary_cross_entropy": lambda d: (d(4, 8), d(4, 8)),
    "cross_entropy_loss": lambda d: (d(4, 8), d.classes(4)),
    **_alike("gelu sigmoid tanh silu mean var relu std", lambda d: (d(4, 8),)),
    "add.Tensor": lambda d: (d(4, 8), d(4, 8).float()),
    "batch_norm": lambda d: (d(4, 8), None, None, None, None, True, 0.1, 1e-5, True),
    "instance_norm": lambda d: (d(1, 4, 8), None, None, None, None, True, 0.1, 1e-5, True),
    "embedding": lambda d: (d(4, 8), d.classes(2)),
    **_alike("avg_pool3d max_pool3d adaptive_avg_pool3d adaptive_max_pool3d", lambda d: (d(1, 2, 4, 4, 4), [2, 2, 2])),
    **_alike("avg_pool2d adaptive_avg_pool2d", lambda d: (d(1, 2, 4, 4), [2, 2])),
    **_alike("reflection_pad1d replication_pad1d", lambda d: (d(1, 2, 4), [1, 1])),
    **_alike("reflection_pad2d replication_pad2d", lambda d: (d(1, 2, 4, 4), [1, 1, 1, 1])),
    "replication_pad3d": lambda d: (d(1, 2, 4, 4, 4), [1, 1, 1, 1, 1, 1]),
}


@dataclass(frozen=True)
class OperatorCase:
    """One call.

    Attributes:
      name: PyTorch's, with the overload.
      rule: `lower`, `float32`, `widest`, or `none`.
      given: Dtypes of the inputs, for tables.
      arguments: On the CPU.
      expected: Dtype of the result by the list; None where no list says so.
    """

    name: str
    rule: str
    given: str
    arguments: tuple[Any, ...]
    expected: torch.dtype | None


def cases(dtype: torch.dtype) -> Iterator[OperatorCase]:
    """Yields a call or two for each operator that this torch has.

    Args:
      dtype: Of the region.
    """
    low, wide = str(dtype).removeprefix("torch."), "float32"
    for name, arguments in _LOWER.items():
        yield OperatorCase(name, "lower", wide, arguments(Draw(torch.float32)), dtype)
    for name, arguments in _FLOAT32.items():
        yield OperatorCase(name, "float32", low, arguments(Draw(dtype)), torch.float32)
    for name, arguments in _WIDEST.items():
        mixed = Draw(dtype, torch.float32)
        # A product on this list is made of products of the 16-bit list.
        is_product = name == "tensordot"
        yield OperatorCase(name, "widest", f"{low}, {wide}", arguments(mixed), None if is_product else torch.float32)
        yield OperatorCase(name, "widest", low, arguments(Draw(dtype)), dtype)
    for name, arguments in UNLISTED.items():
        yield OperatorCase(name, "none", low, arguments(Draw(dtype)), None)


def operator(name: str) -> Any:
    """Returns PyTorch's operator; None where this release has none of that name."""
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return getattr(found, overload or "default", None) if found is not None else None


def listed_names() -> set[str]:
    """Returns every name on the lists."""
    return {*LOWER, *FLOAT32, *FLOAT32_SET_DTYPE, *FLOAT32_APPEND_DTYPE, *WIDEST}

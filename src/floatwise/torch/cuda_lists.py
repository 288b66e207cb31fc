# SPDX-License-Identifier: Apache-2.0
"""CUDA autocast's operator lists as data, and the part of them that CPU autocast lacks.

On a CPU, `torch.autocast` has lists of its own: softmax, layer_norm, exp, sum, norms and more stay in 16 bits
there and run in float32 on CUDA. `cuda_policy` closes the gap from this table.

Source: the `AT_FORALL_*` lists of `ATen/autocast_mode.h` in PyTorch 2.13.0, which ships in every wheel under
`torch/include`. `tests/torch/test_cuda_lists.py` reads that header and the dispatcher of the installed torch,
and fails when a new release changes a list.

Where the two backends still differ on purpose, because training on a CPU wants a result and no error:

* Operators that only the CPU's own list names keep the CPU's policy. `binary_cross_entropy` runs in float32
  here and raises on CUDA; `cross_entropy_loss` runs wholly in float32 here, while on CUDA its
  log-probabilities are rounded to 16 bits, because it asks `log_softmax` for its input's dtype, which
  autocast then respects; 3-d pooling, padding, fft and linalg run in float32 here, since the CPU has few
  16-bit kernels for them.
* Composite operators of the 16-bit list are left to what they are made of: products are lowered either way,
  and the gates of a recurrent cell keep the dtype of its state.

A rehearsal wants to know what CUDA does, and treats these apart: `floatwise.rehearse.cuda_specials` the operators
with a rule of the CPU's own, `floatwise.rehearse.recurrent` recurrent layers and cells.
"""

from __future__ import annotations

__all__ = [
    "CUDNN",
    "FLOAT32",
    "FLOAT32_APPEND_DTYPE",
    "FLOAT32_SET_DTYPE",
    "LOWER",
    "REFUSED",
    "TORCH_VERSION",
    "WIDEST",
]

#: The release the lists were read from.
TORCH_VERSION = "2.13.0"

#: Every floating-point input below float32 is cast to float32 (`AT_FORALL_FP32`).
FLOAT32: tuple[str, ...] = (
    *(
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log1p",
        "log2",
        "reciprocal",
        "rsqrt",
    ),
    *("sinh", "tan", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "softplus", "logsumexp"),
    *("group_norm", "layer_norm", "native_layer_norm", "rms_norm"),
    *("frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "renorm", "cdist", "dist", "pdist"),
    *(
        "cosine_similarity",
        "binary_cross_entropy_with_logits",
        "cosine_embedding_loss",
        "hinge_embedding_loss",
    ),
    *("huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss"),
    *("multilabel_margin_loss", "nll_loss", "nll_loss2d", "poisson_nll_loss", "smooth_l1_loss"),
    *("soft_margin_loss", "triplet_margin_loss"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d"),
    *("_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d"),
    *("_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)

#: `dtype` becomes float32 where the caller gave none and the first input is lower
#: (`AT_FORALL_FP32_SET_OPT_DTYPE`); a dtype that was given is respected.
FLOAT32_SET_DTYPE: tuple[str, ...] = (
    *(
        "prod",
        "prod.dim_int",
        "cumprod",
        "cumsum",
        "sum",
        "sum.dim_IntList",
        "softmax.int",
        "log_softmax.int",
    ),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
)

#: Overload without a dtype → the one with a dtype, which is then float32
#: (`AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE`).
FLOAT32_APPEND_DTYPE: dict[str, str] = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}

#: Inputs are cast to the widest of their dtypes (`AT_FORALL_PROMOTE`).
WIDEST: tuple[str, ...] = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "scatter_add"),
    *("tensordot", "vdot"),
)

#: Inputs are cast to the region's dtype (`AT_FORALL_LOWER_PRECISION_FP`).
LOWER: tuple[str, ...] = (
    *("_convolution", "_convolution.deprecated", "convolution", "conv1d", "conv2d", "conv3d", "conv_tbc"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "prelu", "addbmm", "addmm"),
    *(
        "addmv",
        "addr",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "einsum",
        "linalg_multi_dot",
        "linalg_vecdot",
        "linear",
    ),
    *("matmul", "mm", "mv", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "gru_cell", "lstm_cell"),
    *(
        "rnn_relu_cell",
        "rnn_tanh_cell",
        "_scaled_dot_product_flash_attention",
        "scaled_dot_product_attention",
    ),
)

#: Raises an error (`binary_cross_entropy_banned` of `ATen/autocast_mode.cpp`).
REFUSED = "binary_cross_entropy"

#: Cast like `LOWER`, and never met on a CPU (`ATen/autocast_mode.cpp`; `ATen/cudnn/AutocastRNN.cpp`, which wheels
#: without CUDA leave out).
CUDNN: tuple[str, ...] = ("cudnn_convolution", "cudnn_convolution_transpose", "_cudnn_rnn")

# SPDX-License-Identifier: Apache-2.0
"""Kernels, LossScaler and MasterWeights: what holds is seen to hold, and what is planted is reported."""

from __future__ import annotations

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.gpu import kernels, masters, scaler
from benchmarks.gpu.kernel_names import kind_of
from benchmarks.gpu.part import Part
from benchmarks.gpu.sides import Rehearsal
from tests.benchmarks.gpu_events import Found

from floatwise.hardware import get_device
from floatwise.torch import LossScaler
from floatwise.torch.masters.master import Copy

MATRIX_UNIT = """
volta_h884gemm_128x64_ldg8_nn
volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn
turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn
ampere_bf16_s16816gemm_bf16_128x128_ldg8_relu_f2f_stages_64x3_tn
sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_g1_tensor16x8x16_execute_kernel__5x_cudnn
sm86_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_kernel
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_segment_k_off_kernel__5x_cublas
sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_cublas
void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4>(cutlass_80_tensorop_s1688gemm::Params)
cutlass_75_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align8
nvjet_tst_128x128_64x4_1x2_h_bz_coopA
nvjet_hsh_256x128_64x4_2x1_v_bz_TNN
nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT
void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t>>
fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)
fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)
cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x
"""
PRODUCT = """
volta_sgemm_128x64_tn
ampere_sgemm_32x128_tn
ampere_scudnn_128x32_relu_small_nn_v1
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_execute_kernel__5x_cublas
void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(cutlass_80_simt_sgemm_128x64_8x5_tn_align1::Params)
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>
void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>
void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, true, false, true>
fmha_cutlassF_f32_aligned_64x64_rf_sm50
"""
OTHER = """
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, false>
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>
void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true>
void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>
void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128, 128, 8>>
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, names in (("matrix unit", MATRIX_UNIT), ("product", PRODUCT), ("other", OTHER))
        for name in names.strip().splitlines()
    ],
)
def test_a_kernels_name_tells_whether_it_multiplies_on_matrix_units(kind: str, name: str) -> None:
    assert kind_of(name) == kind


def event(name: str, microseconds: float, device: str = "DeviceType.CUDA", **more: Any) -> Any:
    return SimpleNamespace(name=name, device_type=device, self_device_time_total=microseconds, **more)


def test_kernels_are_told_from_what_surrounds_them() -> None:
    found = kernels.seconds_by_kernel(
        [
            event("ampere_sgemm_32x128_tn", 1.0),
            event("nvjet_tst_128x128", 2.0),
            event("nvjet_tst_128x128", 4.0),
            event("aten::mm", 9.0, device="DeviceType.CPU"),
            event("Optimizer.step#AdamW.step", 9.0),
            event("a step", 9.0, is_user_annotation=True),
            event("Memcpy HtoD (Pageable -> Device)", 9.0),
        ]
    )
    assert found == pytest.approx({"nvjet_tst_128x128": 6e-6, "ampere_sgemm_32x128_tn": 1e-6})
    assert list(found) == ["nvjet_tst_128x128", "ampere_sgemm_32x128_tn"]
    assert kernels.shares(found) == pytest.approx({"matrix unit": 6 / 7, "product": 1 / 7, "other": 0})


@pytest.mark.parametrize(
    ("device", "kernel", "disagreeing"),
    [
        ("h200", "nvjet_tst_128x128", 0),
        ("h200", "ampere_sgemm_32x128_tn", 8),
        ("t4", "ampere_sgemm_32x128_tn", 2),  # of float16: it has units for no other format
    ],
)
def test_recipes_that_do_not_reach_matrix_units_are_reported(
    device: str, kernel: str, disagreeing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "device_row", lambda: get_device(device))
    monkeypatch.setattr(kernels, "profiled_kernels", lambda model, plan: {kernel: 1e-3, "add_kernel": 3e-3})
    found = Found(kernels.run, "cuda")
    assert len(found.disagreements) == disagreeing
    rows = [row for row in found.rows if "used_matrix_units" in row]
    assert {row["used_matrix_units"] for row in rows} == {kernel.startswith("nvjet")}
    assert rows[0]["products"] == [{"kernel": kernel, "kind": kind_of(kernel), "milliseconds": 0.5}]


# -- LossScaler -------------------------------------------------------------------------------------------------------


def test_loss_scaling_is_grad_scalers_and_its_faults_are_cured() -> None:
    found = Found(scaler.run)
    assert not found.disagreements
    same = [row for row in found.rows if row["what"].startswith("LossScaler(growth='fixed')")]
    assert len(same) == len(scaler.OPTIMIZERS)
    assert all(row["differs"] is None and row["overflows"] > 3 for row in same)
    assert sum("fault cured" in check["what"] for check in found.checks) == 4
    assert all(row["stock_has_it"] for row in found.rows if "stock_has_it" in row)
    assert any("time of a step" in row["what"] and row["ratio"]["median"] > 0 for row in found.rows)
    assert "waits for the device" in found.left_out


@pytest.mark.parametrize(
    ("settings", "detail"),
    [
        ({"growth_factor": 4.0}, "scales 2**19 and 2**20 in step 10"),
        ({"backoff_factor": 0.25}, "scales 2**21 and 2**20 in step 1"),
    ],
)
def test_a_scaler_that_moves_otherwise_is_reported(
    settings: dict[str, float], detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaler, "LossScaler", partial(LossScaler, **settings))  # type: ignore[arg-type]
    monkeypatch.setattr(scaler, "OPTIMIZERS", {"SGD": scaler.OPTIMIZERS["SGD"]})
    monkeypatch.setattr(scaler, "TIMED", ())
    disagreements = Found(scaler.run).disagreements
    assert detail in disagreements["same bits, SGD"]


def test_waits_for_the_device_are_counted_by_pytorchs_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with scaler.counted_waits() as found:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("does not yet detect all synchronizing operations", stacklevel=1)
    assert found == [3]
    assert modes == ["warn", "default"]


@pytest.mark.parametrize(("waits", "passed"), [([0, 2, 3], True), ([0, 2, 4], False), ([60, 63, 63], True)])
def test_more_waits_than_documented_are_reported(
    waits: list[int], passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(waits)

    class Counted:
        def __enter__(self) -> list[int]:
            return [left.pop(0)]

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(scaler, "counted_waits", Counted)

    def compare(part: Part) -> None:
        scaler.compare_waits(part, Rehearsal(), "AdamW, fused")

    (check,) = Found(compare).checks
    assert check["passed"] is passed
    assert check["detail"].startswith(f"GradScaler {waits[0]}, fixed {waits[1]}, headroom {waits[2]}; ")


# -- MasterWeights ----------------------------------------------------------------------------------------------------


def test_master_weights_give_float32s_bits_in_the_documented_bytes() -> None:
    found = Found(masters.run)
    assert not found.disagreements
    rows = {(row["optimizer"], row["mode"]): row for row in found.rows if "optimizer" in row}
    assert len(rows) == len(masters.OPTIMIZERS) * len(masters.MODES)
    assert {mode for (_, mode), row in rows.items() if row["same_bits"]} == {"split", "float32"}
    sizes = rows["AdamW, fused", "split"]["bytes_per_parameter"]
    assert sizes == pytest.approx({"weights": 4, "gradients": 2, "states": 8, "all": 14}, abs=0.01)
    timed = [row for row in found.rows if "ratio" in row]
    assert {row["what"].partition(" over ")[0] for row in timed} == {"time of the update", "time of a training step"}


def test_masters_that_lose_bits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Copy, value: torch.Tensor, stored: torch.Tensor, start: int, stop: int) -> None:
        stored[start:stop].copy_(value)
        self.extra[start:stop].copy_(stored[start:stop])

    monkeypatch.setattr(Copy, "write", forgetful)
    monkeypatch.setattr(masters, "MODES", ("float32",))
    monkeypatch.setattr(masters, "OPTIMIZERS", {"AdamW, fused": masters.OPTIMIZERS["AdamW, fused"]})
    disagreements = Found(masters.run).disagreements
    assert list(disagreements) == ["float32's bits, AdamW, fused, float32"]
    assert "from float32" in disagreements["float32's bits, AdamW, fused, float32"]

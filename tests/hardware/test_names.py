# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import defaultdict

import pytest

from floatwise.hardware import DEVICES, Device
from floatwise.hardware.names import find_device, nearest_devices

# As drivers report them (nvidia-smi, rocm-smi, hl-smi, sysctl, JAX) and as people and clouds write them.
WRITTEN = """
Tesla K80 = nvidia-k80
Tesla P4 = nvidia-p4
Tesla P40 = nvidia-p40
Tesla P100-SXM2-16GB = nvidia-p100
Tesla P100-PCIE-16GB = nvidia-p100-pcie
P100 = nvidia-p100
Tesla V100-SXM2-16GB = nvidia-v100
Tesla V100-SXM2-32GB = nvidia-v100
Tesla V100-SXM3-32GB = nvidia-v100
Tesla V100-PCIE-16GB = nvidia-v100-pcie
Tesla V100-PCIE-32GB = nvidia-v100-pcie
Tesla V100S-PCIE-32GB = nvidia-v100s
V100 = nvidia-v100
V100 32GB = nvidia-v100
v100-pcie = nvidia-v100-pcie
A100 PCI-E 40GB = nvidia-a100
Tesla T4 = nvidia-t4
NVIDIA T4 = nvidia-t4
nvidia-tesla-t4 = nvidia-t4
T4 = nvidia-t4
GRID T4-16Q = nvidia-t4
T4G = nvidia-t4
NVIDIA A100-SXM4-40GB = nvidia-a100
NVIDIA A100-SXM4-80GB = nvidia-a100
A100-SXM4-40GB = nvidia-a100
A100-SXM-80GB = nvidia-a100
NVIDIA A100-PCIE-40GB = nvidia-a100
NVIDIA A100 80GB PCIe = nvidia-a100
NVIDIA A100-SXM4-40GB MIG 1g.5gb = nvidia-a100
A100 = nvidia-a100
a100 40gb = nvidia-a100
NVIDIA A800-SXM4-80GB = nvidia-a800
NVIDIA A800 80GB PCIe = nvidia-a800
NVIDIA A30 = nvidia-a30
NVIDIA A40 = nvidia-a40
NVIDIA A10 = nvidia-a10
NVIDIA A10-24Q = nvidia-a10
A10 = nvidia-a10
NVIDIA A10G = nvidia-a10g
NVIDIA A16 = nvidia-a16
NVIDIA A2 = nvidia-a2
NVIDIA L4 = nvidia-l4
l4 24gb = nvidia-l4
NVIDIA L20 = nvidia-l20
NVIDIA L40 = nvidia-l40
NVIDIA L40S = nvidia-l40s
NVIDIA L40S-48Q = nvidia-l40s
NVIDIA H100 80GB HBM3 = nvidia-h100
H100 = nvidia-h100
H100 SXM = nvidia-h100
h100-sxm5-80gb = nvidia-h100
NVIDIA H100 PCIe = nvidia-h100-pcie
H100 80GB PCIe = nvidia-h100-pcie
NVIDIA H100 NVL = nvidia-h100-nvl
NVIDIA H800 = nvidia-h800
NVIDIA H20 = nvidia-h20
NVIDIA H20-3e = nvidia-h20
NVIDIA H200 = nvidia-h200
H200 SXM 141GB = nvidia-h200
NVIDIA H200 NVL = nvidia-h200-nvl
NVIDIA GH200 480GB = nvidia-gh200
NVIDIA GH200 144G HBM3e = nvidia-gh200
GH200 = nvidia-gh200
NVIDIA B100 = nvidia-b100
NVIDIA B200 = nvidia-b200
DGX B200 = nvidia-b200
NVIDIA GB200 = nvidia-gb200
GB200 NVL72 = nvidia-gb200
NVIDIA B300 SXM6 AC = nvidia-b300
NVIDIA GB300 = nvidia-gb300
NVIDIA GB10 = nvidia-gb10
DGX Spark = nvidia-gb10
NVIDIA GeForce GTX 1050 Ti = nvidia-gtx-1050-ti
GeForce GTX 1060 6GB = nvidia-gtx-1060
GeForce GTX 1070 with Max-Q Design = nvidia-gtx-1070
GeForce GTX 1080 Ti = nvidia-gtx-1080-ti
GTX1080Ti = nvidia-gtx-1080-ti
1080 = nvidia-gtx-1080
NVIDIA TITAN X (Pascal) = nvidia-titan-x-pascal
NVIDIA TITAN Xp = nvidia-titan-xp
NVIDIA TITAN V = nvidia-titan-v
NVIDIA GeForce GTX 1650 = nvidia-gtx-1650
NVIDIA GeForce GTX 1650 with Max-Q Design = nvidia-gtx-1650
NVIDIA GeForce GTX 1650 SUPER = nvidia-gtx-1650-super
NVIDIA GeForce GTX 1660 SUPER = nvidia-gtx-1660-super
NVIDIA GeForce GTX 1660 Ti = nvidia-gtx-1660-ti
gtx 1660 = nvidia-gtx-1660
NVIDIA GeForce RTX 2060 = nvidia-rtx-2060
NVIDIA GeForce RTX 2060 SUPER = nvidia-rtx-2060-super
GeForce RTX 2070 SUPER = nvidia-rtx-2070-super
NVIDIA GeForce RTX 2080 Super with Max-Q Design = nvidia-rtx-2080-super
RTX 2080 Ti = nvidia-rtx-2080-ti
rtx2080ti = nvidia-rtx-2080-ti
2080 Ti = nvidia-rtx-2080-ti
RTX-2080 = nvidia-rtx-2080
NVIDIA TITAN RTX = nvidia-titan-rtx
NVIDIA GeForce RTX 3050 Laptop GPU = nvidia-rtx-3050
NVIDIA GeForce RTX 3060 = nvidia-rtx-3060
RTX 3060 12GB = nvidia-rtx-3060
NVIDIA GeForce RTX 3070 Ti = nvidia-rtx-3070-ti
NVIDIA GeForce RTX 3080 Laptop GPU = nvidia-rtx-3080
NVIDIA GeForce RTX 3080 Ti Laptop GPU = nvidia-rtx-3080-ti
3080 Ti = nvidia-rtx-3080-ti
3080 = nvidia-rtx-3080
3090 = nvidia-rtx-3090
rtx_3090 = nvidia-rtx-3090
NVIDIA GeForce RTX 3090 Ti = nvidia-rtx-3090-ti
NVIDIA GeForce RTX 4060 Laptop GPU = nvidia-rtx-4060
RTX 4060 Ti 16GB = nvidia-rtx-4060-ti
NVIDIA GeForce RTX 4070 Ti SUPER = nvidia-rtx-4070-ti-super
4070 super = nvidia-rtx-4070-super
NVIDIA GeForce RTX 4080 SUPER = nvidia-rtx-4080-super
NVIDIA GeForce RTX 4090 = nvidia-rtx-4090
NVIDIA GeForce RTX 4090 D = nvidia-rtx-4090-d
4090 = nvidia-rtx-4090
NVIDIA GeForce RTX 5060 Ti = nvidia-rtx-5060-ti
NVIDIA GeForce RTX 5070 Ti Laptop GPU = nvidia-rtx-5070-ti
NVIDIA GeForce RTX 5080 = nvidia-rtx-5080
RTX 5090 32GB = nvidia-rtx-5090
Quadro GV100 = nvidia-quadro-gv100
Quadro RTX 5000 with Max-Q Design = nvidia-quadro-rtx-5000
Quadro RTX 6000 = nvidia-quadro-rtx-6000
Quadro RTX 8000 = nvidia-quadro-rtx-8000
NVIDIA RTX A2000 12GB = nvidia-rtx-a2000
NVIDIA RTX A4000 = nvidia-rtx-a4000
A5000 = nvidia-rtx-a5000
NVIDIA RTX A6000 = nvidia-rtx-a6000
A6000 48GB = nvidia-rtx-a6000
NVIDIA RTX 4000 SFF Ada Generation = nvidia-rtx-4000-ada
NVIDIA RTX 6000 Ada Generation = nvidia-rtx-6000-ada
RTX A6000 Ada = nvidia-rtx-6000-ada
NVIDIA RTX PRO 6000 Blackwell Workstation Edition = nvidia-rtx-pro-6000
NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition = nvidia-rtx-pro-6000
NVIDIA RTX PRO 6000 Blackwell Server Edition = nvidia-rtx-pro-6000
RTX Pro 6000 = nvidia-rtx-pro-6000
NVIDIA RTX PRO 4500 Blackwell = nvidia-rtx-pro-4500
AMD Instinct MI50 = amd-mi50
AMD Instinct MI100 = amd-mi100
AMD Instinct MI210 = amd-mi210
AMD INSTINCT MI250 (MCM) OAM AC MBA = amd-mi250
AMD Instinct MI250X / MI250 = amd-mi250
MI250X = amd-mi250x
AMD Instinct MI300A = amd-mi300a
AMD Instinct MI300X = amd-mi300x
AMD Instinct MI300X OAM = amd-mi300x
AMD Instinct MI300X VF = amd-mi300x
mi300x = amd-mi300x
AMD Instinct MI325X = amd-mi325x
AMD Instinct MI355X = amd-mi355x
AMD Radeon VII = amd-radeon-vii
AMD Radeon RX 6900 XT = amd-rx-6900-xt
Radeon RX 7900 XTX = amd-rx-7900-xtx
7900 xt = amd-rx-7900-xt
AMD Radeon PRO W7900 = amd-pro-w7900
AMD Radeon RX 9070 XT = amd-rx-9070-xt
Intel(R) Data Center GPU Max 1550 = intel-max-1550
Intel(R) Arc(TM) A770 Graphics = intel-arc-a770
Intel® Arc™ B580 Graphics = intel-arc-b580
HL-225 = habana-gaudi2
Intel Gaudi 2 = habana-gaudi2
Habana Gaudi2 = habana-gaudi2
HL-325L = habana-gaudi3
gaudi-3 = habana-gaudi3
AWS Trainium = aws-trainium1
trn2 = aws-trainium2
TPU v2 = google-tpu-v2
v3-8 = google-tpu-v3
TPU v4 = google-tpu-v4
tpu v4-8 = google-tpu-v4
TPU v5 lite = google-tpu-v5e
v5litepod-8 = google-tpu-v5e
Cloud TPU v5e = google-tpu-v5e
TPU v5p = google-tpu-v5p
TPU v5 = google-tpu-v5p
v5p-128 = google-tpu-v5p
TPU v6 lite = google-tpu-v6e
v6e-8 = google-tpu-v6e
Trillium = google-tpu-v6e
TPU7x = google-tpu-v7x
tpu7x-8 = google-tpu-v7x
Ironwood = google-tpu-v7x
Apple M1 = apple-m1
Apple M1 Ultra = apple-m1-ultra
Apple M2 Pro = apple-m2-pro
M3 Max = apple-m3-max
apple m4 = apple-m4
Apple M5 = apple-m5
CPU with AVX2 = cpu-avx2
cpu avx512_bf16 = cpu-avx512-bf16
"""
CASES = [tuple(line.split(" = ")) for line in WRITTEN.strip().splitlines()]


@pytest.mark.parametrize(("written", "expected"), CASES)
def test_written_names(written: str, expected: str) -> None:
    found = find_device(written)
    assert found is not None
    assert found.id == expected


@pytest.mark.parametrize(("written", "expected"), CASES)
def test_case_and_punctuation_do_not_matter(written: str, expected: str) -> None:
    for variant in (
        written.upper(),
        written.lower().replace(" ", "-"),
        written.replace("-", " "),
        f" {written} ",
    ):
        found = find_device(variant)
        assert found is not None, variant
        assert found.id == expected, variant


def test_the_table_of_names_is_long_enough() -> None:
    assert len(CASES) >= 120


@pytest.mark.parametrize("row", DEVICES.values(), ids=lambda row: row.id)
def test_every_id_name_and_alias_finds_its_row(row: Device) -> None:
    for name in (row.id, row.name, *row.aliases):
        assert find_device(name) is row, name


def test_no_two_devices_claim_one_name() -> None:
    claims: defaultdict[str, set[str]] = defaultdict(set)
    for device in DEVICES.values():
        for name in (device.id, device.name, *device.aliases):
            claims["".join(c for c in name.casefold() if c.isalnum())].add(device.id)
    assert {name: ids for name, ids in claims.items() if len(ids) > 1} == {}


@pytest.mark.parametrize(
    "unknown",
    [
        "A1000",  # not an A100
        "A100X2",
        "RTX 3095",
        "RTX 2080 Ti Ti",
        "AMD Instinct MI300",  # MI300A or MI300X
        "AMD Instinct MI50/MI60",
        "AMD Radeon Graphics",
        "Google TPU v2/v3",
        "NVIDIA GeForce MX450",
        "Llvmpipe",
        "16GB",
        "GPU",
        "nvidia",
        "",
        "   ",
        "未知设备",
    ],
)
def test_unknown_names_have_no_row(unknown: str) -> None:
    assert find_device(unknown) is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("RTX 3095", "nvidia-rtx-3090"),
        ("GeForce RTX 4089", "nvidia-rtx-4080"),
        ("A1000", "nvidia-a100"),
        ("MI300", "amd-mi300x"),
        ("nvidia-t44", "nvidia-t4"),
        ("Tesla V1000", "nvidia-v100"),
        ("guadi2", "habana-gaudi2"),
        ("TPU v5x", "google-tpu-v5e"),
        ("Apple M2 Prro", "apple-m2-pro"),
    ],
)
def test_nearest_names(written: str, expected: str) -> None:
    nearest = [d.id for d in nearest_devices(written)]
    assert expected in nearest
    assert len(nearest) <= 3

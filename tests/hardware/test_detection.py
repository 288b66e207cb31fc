# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from floatwise.hardware import DEVICES, Detected, Machine, best_here, detect

NVIDIA_SMI = "nvidia-smi --query-gpu=name,memory.total,compute_cap --format=csv,noheader,nounits"
ROCM_SMI = "rocm-smi --showproductname --showmeminfo vram --json"
HL_SMI = "hl-smi -Q name,memory.total -f csv,noheader"
GIB = 2**30


def recorded(
    commands: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    system: str = "Linux",
    architecture: str = "x86_64",
) -> Machine:
    """A machine that answers from recordings and has nothing else."""
    outputs, contents = commands or {}, files or {}

    def run_command(arguments: Sequence[str]) -> str | None:
        return outputs.get(" ".join(arguments))

    def list_paths(pattern: str) -> list[str]:
        return sorted(path for path in contents if fnmatch(path, pattern))

    return Machine(contents.get, run_command, list_paths, environment or {}, system, architecture)


def ids(found: list[Detected]) -> list[str | None]:
    return [d.device.id if d.device else None for d in found]


def gpus(machine: Machine) -> list[Detected]:
    found = detect(machine)
    assert found[-1].device is not None
    assert found[-1].device.kind == "cpu"
    return found[:-1]


def test_a_bare_machine_has_a_cpu() -> None:
    assert ids(detect(recorded())) == ["cpu-generic"]
    assert best_here(recorded()).device is DEVICES["cpu-generic"]


# --- NVIDIA ---


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("Tesla T4, 15360, 7.5", "nvidia-t4"),
        ("Tesla V100-SXM2-16GB, 16384, 7.0", "nvidia-v100"),
        ("NVIDIA A100 80GB PCIe, 81920, 8.0", "nvidia-a100"),
        ("NVIDIA GeForce GTX 1660 SUPER, 6144, 7.5", "nvidia-gtx-1660-super"),
        ("NVIDIA L4, 23034, 8.9", "nvidia-l4"),
        ("NVIDIA H100 80GB HBM3, 81559, 9.0", "nvidia-h100"),
        ("NVIDIA H200, 143771, 9.0", "nvidia-h200"),
        ("NVIDIA B200, 183359, 10.0", "nvidia-b200"),
        ("NVIDIA GeForce RTX 5060, 8151, 12.0", "nvidia-rtx-5060"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 97887, 12.0", "nvidia-rtx-pro-6000"),
    ],
)
def test_nvidia_smi(line: str, id: str) -> None:
    name, mib, capability = line.split(", ")
    (found,) = gpus(recorded({NVIDIA_SMI: line + "\n"}))
    assert found.device is DEVICES[id]
    assert found.reported_name == name
    assert found.memory_bytes == int(mib) * 2**20
    assert found.how == f"nvidia-smi, compute capability {capability}"


def test_several_gpus_best_first() -> None:
    lines = [
        "NVIDIA GeForce GTX 1080, 8192, 6.1",
        "Tesla T4, 15360, 7.5",
        "NVIDIA GeForce RTX 4090, 24564, 8.9",
    ]
    found = gpus(recorded({NVIDIA_SMI: "\n".join(lines)}))
    assert ids(found) == ["nvidia-rtx-4090", "nvidia-t4", "nvidia-gtx-1080"]


def test_eight_equal_gpus() -> None:
    assert ids(gpus(recorded({NVIDIA_SMI: "NVIDIA H200, 143771, 9.0\n" * 8}))) == ["nvidia-h200"] * 8


def test_memory_that_is_not_reported() -> None:
    (found,) = gpus(recorded({NVIDIA_SMI: "NVIDIA GB10, [N/A], 12.1\n"}))
    assert found.device is DEVICES["nvidia-gb10"]
    assert found.memory_bytes is None


def test_an_unknown_gpu_is_reported_as_unknown() -> None:
    machine = recorded({NVIDIA_SMI: "NVIDIA X9000, 524288, 13.0\nTesla T4, 15360, 7.5\n"})
    found = gpus(machine)
    assert ids(found) == ["nvidia-t4", None]
    assert found[1].reported_name == "NVIDIA X9000"
    assert found[1].how == "nvidia-smi, compute capability 13.0"


def test_a_name_that_contradicts_the_capability_is_not_believed() -> None:
    (found,) = gpus(recorded({NVIDIA_SMI: "NVIDIA A100-SXM4-40GB, 40960, 7.5\n"}))
    assert found.device is None
    assert found.how == "nvidia-smi, compute capability 7.5, which is not that of NVIDIA A100"


@pytest.mark.parametrize(
    "output",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n",
        'Field "compute_cap" is not a valid field to query.\n',
        "a, b, c\n",
        ", , \n",
        "\x00\ufffd\ufffd,,\n",
        "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n",
    ],
)
def test_nvidia_smi_without_an_answer(output: str) -> None:
    assert gpus(recorded({NVIDIA_SMI: output})) == []


def test_the_driver_is_asked_when_nvidia_smi_is_missing() -> None:
    folder = "/proc/driver/nvidia/gpus"
    files = {
        f"{folder}/0000:00:1e.0/information": "Model: \t\t NVIDIA A10G\nIRQ:   \t\t 42\nBus Type: \t PCIe\n",
        f"{folder}/0000:01:00.0/information": "Model: \t\t Tesla K80\n",
        f"{folder}/0000:02:00.0/information": "IRQ: 7\n",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03\n",
    }
    found = gpus(recorded(files=files))
    assert ids(found) == ["nvidia-a10g", "nvidia-k80"]
    assert {d.how for d in found} == {"/proc/driver/nvidia"}


def test_nvidia_smi_under_wsl() -> None:
    machine = recorded({f"/usr/lib/wsl/lib/{NVIDIA_SMI}": "NVIDIA GeForce RTX 3080 Laptop GPU, 16384, 8.6\n"})
    assert ids(gpus(machine)) == ["nvidia-rtx-3080"]


# --- AMD ---

MI300X = """{"card0": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297349120",
"Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1", "Card Vendor": "AMD/ATI",
"Card SKU": "M3000100", "GFX Version": "gfx942"}, "system": {"Driver version": "6.8.5"}}"""
OLD_MI210 = '{"card1": {"Card series": "0x740f", "Card model": "AMD Instinct MI210", "Card SKU": "D67301"}}'
NAVI_31 = """{
  "card0": {
    "Card series": "Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]",
    "Card model": "0x5302"
  }
}"""


def test_rocm_smi() -> None:
    (found,) = gpus(recorded({ROCM_SMI: MI300X}))
    assert found.device is DEVICES["amd-mi300x"]
    assert found.reported_name == "AMD Instinct MI300X OAM"
    assert found.memory_bytes == 206141652992
    assert found.how == "rocm-smi"


def test_rocm_smi_of_older_releases() -> None:
    (found,) = gpus(recorded({ROCM_SMI: OLD_MI210}))
    assert found.device is DEVICES["amd-mi210"]
    assert found.memory_bytes is None


@pytest.mark.parametrize("noise", ["WARNING: {AMD GPU} is in a low-power state\n", "\n\nWARNING: no root\n", ""])
def test_rocm_smi_with_warnings(noise: str) -> None:
    assert ids(gpus(recorded({ROCM_SMI: noise + MI300X + "\n" + noise.replace("}", "")}))) == ["amd-mi300x"]
    assert ids(gpus(recorded({ROCM_SMI: noise + NAVI_31}))) == [None]


@pytest.mark.parametrize(
    "output",
    ["", "{", "{}", "[1]", '{"card0": 3}', '{"card0": ', "ERROR: no AMD GPUs", '{"system": {"a": "b"}}'],
)
def test_rocm_smi_without_an_answer(output: str) -> None:
    assert gpus(recorded({ROCM_SMI: output})) == []


# --- by PCI id ---


def pci(*devices: tuple[str, str], others: Mapping[str, str] | None = None) -> dict[str, str]:
    folder = "/sys/bus/pci/devices"
    return {
        f"{folder}/0000:{slot:02x}:00.0/uevent": f"DRIVER={driver}\nPCI_CLASS=38000\nPCI_ID={pci_id}\n"
        for slot, (pci_id, driver) in enumerate(devices)
    } | dict(others or {})


@pytest.mark.parametrize(
    ("pci_id", "driver", "device_file", "id"),
    [
        ("1002:74A1", "amdgpu", "/dev/kfd", "amd-mi300x"),
        ("1002:740C", "amdgpu", "/dev/kfd", "amd-mi250"),
        ("8086:0BD5", "i915", "/dev/dri/renderD128", "intel-max-1550"),
        ("8086:E20B", "xe", "/dev/dri/renderD129", "intel-arc-b580"),
        ("1DA3:1020", "habanalabs", "/dev/accel/accel0", "habana-gaudi2"),
        ("1AE0:005E", "tpu-v4-pci", "/dev/accel0", "google-tpu-v4"),
        ("1AE0:006F", "vfio-pci", "/dev/vfio/0", "google-tpu-v6e"),
        ("1D0F:7364", "neuron", "/dev/neuron0", "aws-trainium2"),
    ],
)
def test_pci(pci_id: str, driver: str, device_file: str, id: str) -> None:
    (found,) = gpus(recorded(files=pci((pci_id, driver), others={device_file: ""})))
    assert found.device is DEVICES[id]
    assert found.how == f"PCI id {pci_id.lower()}"
    assert gpus(recorded(files=pci((pci_id, driver)))) == []  # no device file: cannot be used
    assert gpus(recorded(files=pci((pci_id, ""), others={device_file: ""}))) == []  # nor without a driver


def test_a_gpu_handed_to_a_virtual_machine_does_not_count() -> None:
    assert gpus(recorded(files=pci(("1002:74A1", "vfio-pci"), others={"/dev/kfd": ""}))) == []


def test_graphics_built_into_a_cpu_does_not_count() -> None:
    assert gpus(recorded(files=pci(("8086:9BC5", "i915"), others={"/dev/dri/renderD128": ""}))) == []


def test_amd_memory_from_the_driver() -> None:
    memory = {"/sys/bus/pci/devices/0000:00:00.0/mem_info_vram_total": "68702699520\n", "/dev/kfd": ""}
    (found,) = gpus(recorded(files=pci(("1002:740F", "amdgpu"), others=memory)))
    assert found.memory_bytes == 68702699520


def test_a_gpu_is_not_listed_twice() -> None:
    machine = recorded({ROCM_SMI: MI300X}, pci(("1002:74A1", "amdgpu"), others={"/dev/kfd": ""}))
    assert [d.how for d in gpus(machine)] == ["rocm-smi"]


def test_an_id_that_several_products_share_is_reported_as_unknown() -> None:
    (found,) = gpus(recorded(files=pci(("1002:744C", "amdgpu"), others={"/dev/kfd": ""})))
    assert found.device is None
    assert found.reported_name == "AMD Radeon RX 7900 XT/7900 XTX"


@pytest.mark.parametrize(
    ("environment", "id"),
    [
        ({"TPU_ACCELERATOR_TYPE": "v3-8"}, "google-tpu-v3"),
        ({"TPU_ACCELERATOR_TYPE": "v2-8"}, "google-tpu-v2"),
        ({"TPU_ACCELERATOR_TYPE": "nonsense"}, None),
        ({}, None),
    ],
)
def test_tpu_v2_and_v3_share_an_id(environment: dict[str, str], id: str | None) -> None:
    files = pci(*[("1AE0:0027", "tpu-v3-pci")] * 4, others={"/dev/accel0": ""})
    assert ids(gpus(recorded(files=files, environment=environment))) == [id] * 4


def test_an_environment_variable_alone_makes_no_tpu() -> None:
    assert gpus(recorded(environment={"TPU_ACCELERATOR_TYPE": "v5litepod-8"})) == []


def test_hl_smi() -> None:
    found = gpus(recorded({HL_SMI: "HL-225, 98304 MiB\n" * 8}))
    assert ids(found) == ["habana-gaudi2"] * 8
    assert found[0].memory_bytes == 96 * GIB


@pytest.mark.parametrize("output", ["", "HL-225\n", "Failed to open device", "name, memory.total [MiB]\n"])
def test_hl_smi_without_an_answer(output: str) -> None:
    assert gpus(recorded({HL_SMI: output})) == []


# --- macOS ---


def mac(**values: str) -> Machine:
    known = {"brand": "machdep.cpu.brand_string", "memory": "hw.memsize", "cores": "hw.physicalcpu"}
    names = known | {"bf16": "hw.optional.arm.FEAT_BF16", "leaf7": "machdep.cpu.leaf7_features"}
    outputs = {f"sysctl -n {names[key]}": value + "\n" for key, value in values.items()}
    return recorded(outputs, system="Darwin", architecture="x86_64" if "leaf7" in values else "arm64")


def test_apple_silicon() -> None:
    gpu, cpu = detect(mac(brand="Apple M2 Pro", memory="34359738368", cores="12", bf16="1"))
    assert gpu.device is DEVICES["apple-m2-pro"]
    assert gpu.memory_bytes == 32 * GIB
    assert cpu.device is DEVICES["cpu-arm-bf16"]
    assert cpu.reported_name == "Apple M2 Pro"
    assert cpu.cores == 12


def test_apple_silicon_before_bfloat16_and_after_this_table() -> None:
    m1 = mac(brand="Apple M1", memory="8589934592", cores="8", bf16="0")
    assert ids(detect(m1)) == ["apple-m1", "cpu-arm-neon"]
    assert ids(detect(mac(brand="Apple M9 Ultra"))) == [None, "cpu-arm-neon"]
    assert ids(detect(mac())) == ["cpu-arm-neon"]


def test_intel_mac() -> None:
    (cpu,) = detect(mac(brand="Intel(R) Core(TM) i9-9980HK", leaf7="RDWRFSGS AVX2 BMI1 BMI2", cores="8"))
    assert cpu.device is DEVICES["cpu-avx2"]
    assert cpu.how == "sysctl features: avx2"


# --- CPUs ---


def cpuinfo(model: str, flags: str, sockets: int = 1, cores: int = 2, threads: int = 2) -> str:
    places = [(s, c) for s in range(sockets) for c in range(cores) for _ in range(threads)]
    return "".join(
        f"processor\t: {n}\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: {model}\n"
        f"physical id\t: {s}\ncore id\t\t: {c}\ncpu cores\t: {cores}\nflags\t\t: {flags}\n\n"
        for n, (s, c) in enumerate(places)
    )


AVX2 = "fpu vme sse2 ssse3 fma avx f16c avx2"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl avx512_vnni"
SAPPHIRE_RAPIDS = f"{AVX512} avx_vnni avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8"


@pytest.mark.parametrize(
    ("flags", "id", "telling"),
    [
        ("fpu vme sse2 ssse3 avx", "cpu-generic", "none that is known"),
        (AVX2, "cpu-avx2", "avx2"),
        (AVX512, "cpu-avx512", "avx512f"),
        (f"{AVX512} avx512_bf16", "cpu-avx512-bf16", "avx512_bf16"),
        (SAPPHIRE_RAPIDS, "cpu-amx-bf16", "amx_bf16"),
        (f"{SAPPHIRE_RAPIDS} amx_fp16", "cpu-amx-fp16", "amx_fp16"),
    ],
)
def test_x86(flags: str, id: str, telling: str) -> None:
    text = cpuinfo("INTEL(R) XEON(R) PLATINUM 8480+", flags, sockets=2, cores=4, threads=2)
    files = {"/proc/cpuinfo": text, "/proc/meminfo": "MemTotal:       1056270288 kB\nMemFree: 1 kB\n"}
    (found,) = detect(recorded(files=files))
    assert found.device is DEVICES[id]
    assert found.reported_name == "INTEL(R) XEON(R) PLATINUM 8480+"
    assert found.how == f"/proc/cpuinfo flags: {telling}"
    assert found.cores == 8
    assert found.memory_bytes == 1056270288 * 1024


GRAVITON_2 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp"
GRAVITON_3 = f"{GRAVITON_2} sve asimdfhm svei8mm svebf16 i8mm bf16 dgh rng"


@pytest.mark.parametrize(("features", "id"), [(GRAVITON_2, "cpu-arm-neon"), (GRAVITON_3, "cpu-arm-bf16")])
def test_arm(features: str, id: str) -> None:
    block = f"BogoMIPS\t: 2100.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n"
    files = {"/proc/cpuinfo": "".join(f"processor\t: {n}\n{block}" for n in range(4))}
    (found,) = detect(recorded(files=files, architecture="aarch64"))
    assert found.device is DEVICES[id]
    assert found.reported_name == "aarch64"
    assert found.cores == 4
    assert found.memory_bytes is None


@pytest.mark.parametrize("text", ["", "\n\n", "garbage without a colon", "\ufffd\x00: \n"])
def test_a_cpuinfo_that_says_nothing(text: str) -> None:
    (found,) = detect(recorded(files={"/proc/cpuinfo": text}))
    assert found.device is DEVICES["cpu-generic"]
    assert found.cores is None


@pytest.mark.parametrize(("architecture", "id"), [("AMD64", "cpu-generic"), ("ARM64", "cpu-arm-neon")])
def test_windows(architecture: str, id: str) -> None:
    (found,) = detect(recorded(system="Windows", architecture=architecture))
    assert found.device is DEVICES[id]
    assert found.how == f"platform.machine() is {architecture}"


# --- this machine ---


def test_here() -> None:
    found = detect()
    assert found[0] == best_here()
    assert found[-1].device is not None
    assert found[-1].device.kind == "cpu"
    assert all(d.device is None or d.device.kind != "cpu" for d in found[:-1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_here_agrees_with_the_flags_of_this_cpu() -> None:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    cpu = detect()[-1]
    assert cpu.device is not None
    assert cpu.cores
    assert cpu.memory_bytes
    has_bfloat16 = any(flag in text.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    assert cpu.device.has_matrix("bfloat16") == has_bfloat16

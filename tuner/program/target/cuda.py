"""NVIDIA's GPUs, the targets of kind ``cuda``: the limits of their hardware, and what it does in a second.

An architecture is an entry of ARCHITECTURES, a product one of PRODUCTS: nothing else says what a GPU has. Figures are
those of NVIDIA's data sheets and of the tables of the CUDA programming guide; clocks are the boost clocks. A target
names a product, or an architecture, which stands for the product that is written beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import log
from typing import Any

from tuner.errors import InvalidInput, shown

KIB, MIB = 2**10, 2**20
WARP = 32
REGISTERS = 65536
"""Registers of 32 bits of a streaming multiprocessor (SM)."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What all GPUs of one instruction set have in each SM.

    ``shared_bytes``: of an SM; ``block_shared_bytes``: of one block, opted in. ``matrix``: the instruction that tensor
    cores take; ``matrix_rows``: the least rows of a tile that four warps give it. ``fma_lanes``: multiply-adds of
    float32 in a cycle. ``tensor_flops``: by dtype of the operands, in a cycle, with sums in float32 or int32, at the
    full rate. ``has_tma``: whether tiles come by tensor descriptors.
    """

    product: str
    threads: int
    blocks: int
    shared_bytes: int
    block_shared_bytes: int
    matrix: str
    matrix_rows: int
    has_tma: bool
    fma_lanes: int
    tensor_flops: Mapping[str, int]

    @property
    def warps(self) -> int:
        return self.threads // WARP


def _tensor(float16: int, **more: int) -> Mapping[str, int]:
    """Rates by dtype: halves of float16 for TF32, twice it for bytes, unless given."""
    return {"float16": float16, "bfloat16": float16, "tf32": float16 // 2, "int8": 2 * float16, **more}


ARCHITECTURES: Mapping[str, Architecture] = {
    "sm_80": Architecture("a100", 2048, 32, 164 * KIB, 163 * KIB, "mma", 16, False, 64, _tensor(2048)),
    "sm_86": Architecture("a10", 1536, 16, 100 * KIB, 99 * KIB, "mma", 16, False, 128, _tensor(1024)),
    "sm_89": Architecture("l4", 1536, 24, 100 * KIB, 99 * KIB, "mma", 16, False, 128, _tensor(1024, float8=2048)),
    "sm_90": Architecture("h100", 2048, 32, 228 * KIB, 227 * KIB, "wgmma", 64, True, 128, _tensor(4096, float8=8192)),
    "sm_100": Architecture(
        "b200", 2048, 32, 228 * KIB, 227 * KIB, "tcgen05", 64, True, 128, _tensor(8192, float8=16384)
    ),
    "sm_120": Architecture("rtx5090", 1536, 24, 100 * KIB, 99 * KIB, "mma", 16, True, 128, _tensor(1024, float8=2048)),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A product. ``tensor_percent``: the share of the architecture's rates that its tensor cores have where sums are
    float32 (half on GeForce cards). ``memory_bytes_s``: bytes in a second."""

    product: str
    arch: str
    sms: int
    clock_mhz: int
    l2_bytes: int
    memory_bytes_s: int
    watts: int
    tensor_percent: int = 100

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.arch]

    def tensor_flops_s(self, dtype: str) -> float:
        """Floating-point operations of all tensor cores in a second; 0 for a dtype that they do not take."""
        rate = self.architecture.tensor_flops.get(dtype, 0)
        return rate * self.tensor_percent / 100 * self.sms * self.clock_mhz * 1e6

    def fma_flops_s(self) -> float:
        """Floating-point operations of float32 without tensor cores in a second."""
        return 2.0 * self.architecture.fma_lanes * self.sms * self.clock_mhz * 1e6


_PRODUCTS = (
    Gpu("a100", "sm_80", 108, 1410, 40 * MIB, 1555 * 10**9, 400),
    Gpu("a100-80gb", "sm_80", 108, 1410, 40 * MIB, 2039 * 10**9, 400),
    Gpu("a10", "sm_86", 72, 1695, 6 * MIB, 600 * 10**9, 150),
    Gpu("rtx3090", "sm_86", 82, 1695, 6 * MIB, 936 * 10**9, 350, 50),
    Gpu("l4", "sm_89", 58, 2040, 48 * MIB, 300 * 10**9, 72),
    Gpu("l40s", "sm_89", 142, 2520, 96 * MIB, 864 * 10**9, 350),
    Gpu("rtx4090", "sm_89", 128, 2520, 72 * MIB, 1008 * 10**9, 450, 50),
    Gpu("h100", "sm_90", 132, 1980, 50 * MIB, 3352 * 10**9, 700),
    Gpu("h100-pcie", "sm_90", 114, 1755, 50 * MIB, 2039 * 10**9, 350),
    Gpu("h200", "sm_90", 132, 1980, 60 * MIB, 4800 * 10**9, 700),
    Gpu("b200", "sm_100", 148, 1850, 126 * MIB, 8000 * 10**9, 1000),
    Gpu("rtx5090", "sm_120", 170, 2407, 96 * MIB, 1792 * 10**9, 575, 50),
)
PRODUCTS: Mapping[str, Gpu] = {gpu.product: gpu for gpu in _PRODUCTS}
SIZES: Mapping[str, range] = {
    "sms": range(1, 1025),
    "clock_mhz": range(100, 10_001),
    "l2_bytes": range(1, 2**36 + 1),
    "memory_bytes_s": range(10**9, 10**15),
    "watts": range(1, 100_001),
    "tensor_percent": range(1, 101),
}
"""The range of each number of a Gpu."""
FIELDS = ("kind", "arch", "product", "hardware")
ALIKE = 0.05
"""The share by which bandwidths of one product may differ: drivers give clocks in whole MHz."""


def nearest_product(arch: str, sms: int, memory_bytes_s: int) -> Gpu:
    """The product of an instruction set that is most like a GPU of so many SMs and bytes in a second."""
    of_arch = [gpu for gpu in PRODUCTS.values() if gpu.arch == arch]
    own = replace(of_arch[0], sms=sms, memory_bytes_s=max(memory_bytes_s, 1))
    return min(of_arch, key=lambda gpu: unlike(gpu, own))


def unlike(one: Gpu, other: Gpu) -> float:
    """How far two GPUs are apart in SMs and in bandwidth, as a sum of logarithms."""
    return abs(log(one.sms / other.sms)) + abs(log(one.memory_bytes_s / other.memory_bytes_s))


def differs(wanted: Gpu, own: Gpu) -> bool:
    """Whether a GPU is another than the one wanted, by what its code and its latencies depend on. Clocks and limits of
    power are set by whoever runs it, and change."""
    ratio = own.memory_bytes_s / wanted.memory_bytes_s
    return (wanted.arch, wanted.sms) != (own.arch, own.sms) or abs(ratio - 1) > ALIKE


def spoken(gpu: Gpu) -> str:
    """``h100 (sm_90, 132 SMs, 3352 GB/s)``"""
    return f"{gpu.product} ({gpu.arch}, {gpu.sms} SMs, {gpu.memory_bytes_s / 1e9:.0f} GB/s)"


def read(data: Mapping[str, Any]) -> tuple[str, Gpu]:
    """The architecture and the GPU of what a job says or ``written`` wrote. Raises InvalidInput on field ``target`` or
    one of its own."""
    unknown = next((str(name) for name in data if name not in FIELDS), None)
    if unknown is not None:
        raise InvalidInput("target", f"{shown(unknown)} is not a field of a GPU", f"fields: {', '.join(FIELDS)}")
    arch, product, hardware = data.get("arch"), data.get("product"), data.get("hardware")
    if arch is None and product is None:
        remedy = f"arch: one of {', '.join(ARCHITECTURES)}; or product: one of {', '.join(PRODUCTS)}"
        raise InvalidInput("target.arch", "a GPU names neither its architecture nor its product", remedy)
    if arch is not None and (not isinstance(arch, str) or arch not in ARCHITECTURES):
        raise InvalidInput("target.arch", f"{shown(arch)} is not known", f"one of: {', '.join(ARCHITECTURES)}")
    named = ARCHITECTURES[arch].product if product is None and arch is not None else product
    if not isinstance(named, str) or named not in PRODUCTS:
        raise InvalidInput("target.product", f"{shown(named)} is not known", f"one of: {', '.join(PRODUCTS)}")
    gpu = PRODUCTS[named]
    if arch not in (None, gpu.arch):
        problem = f"{named} has instructions of {gpu.arch}, not of {arch}"
        raise InvalidInput("target.arch", problem, f"arch {gpu.arch}, or none: the product tells")
    return gpu.arch, gpu if hardware is None else _with(gpu, hardware)


def written(gpu: Gpu) -> dict[str, Any]:
    """What ``read`` takes for ``gpu``, without the kind."""
    hardware = {name: value for name, value in asdict(gpu).items() if name in SIZES}
    return {"arch": gpu.arch, "product": gpu.product, "hardware": hardware}


def _with(gpu: Gpu, data: object) -> Gpu:
    """The product with the numbers that one card has; anyone may have written them."""
    if not isinstance(data, Mapping) or set(data) != set(SIZES):
        raise InvalidInput("target.hardware", f"{shown(data)} is no description of a GPU", f"give {', '.join(SIZES)}")
    for name, allowed in SIZES.items():
        value = data[name]
        if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
            remedy = f"an integer from {allowed[0]} to {allowed[-1]}"
            raise InvalidInput(f"target.hardware.{name}", f"{shown(value)} is out of range", remedy)
    return replace(gpu, **{name: data[name] for name in SIZES})

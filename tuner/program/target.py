"""Targets: what code is generated for, and the hardware limits that bound a micro-kernel.

Everything here is read from the operating system; no compiler is needed to name or compare targets.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput

KINDS = ("llvm",)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The limits of one CPU core and of the package around it. Sizes in bytes."""

    vector_bytes: int
    vector_registers: int
    fma_per_cycle: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    features: tuple[str, ...] = ()

    def lanes(self, dtype_bytes: int = 4) -> int:
        return self.vector_bytes // dtype_bytes


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for. ``kind`` and ``mcpu`` are LLVM's names."""

    kind: str
    mcpu: str
    hardware: Hardware

    @property
    def fingerprint(self) -> str:
        """Names the target in the database: equal only if every field is."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return f"{self.kind}-{self.mcpu}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_json(self) -> dict[str, Any]:
        hardware = asdict(self.hardware) | {"features": list(self.hardware.features)}
        return {"kind": self.kind, "mcpu": self.mcpu, "hardware": hardware}

    @staticmethod
    def from_json(data: object) -> Target:
        """Read what ``to_json`` wrote, or a job's ``{kind: llvm, mcpu: ..., num-cores: ...}``."""
        if not isinstance(data, Mapping):
            raise InvalidInput(
                "target", f"{data!r} is not a target", "native, or {kind: llvm, mcpu: ..., num-cores: ...}"
            )
        kind = data.get("kind")
        if kind not in KINDS:
            raise InvalidInput("target.kind", f"{kind!r} is not known", f"one of: {', '.join(KINDS)}")
        mcpu = str(data.get("mcpu", "x86-64"))
        hardware = data.get("hardware")
        if isinstance(hardware, Mapping):
            return Target(str(kind), mcpu, _hardware_from(hardware))
        unknown = sorted(set(map(str, data)) - {"kind", "mcpu", "num-cores"})
        if unknown:
            raise InvalidInput(f"target.{unknown[0]}", "is not a field of a target", "fields: kind, mcpu, num-cores")
        cores = data.get("num-cores", os.cpu_count() or 1)
        if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
            raise InvalidInput("target.num-cores", f"{cores!r} is not a number of cores", "an integer of 1 or more")
        if mcpu not in _CPUS:
            raise InvalidInput("target.mcpu", f"{mcpu!r} is not known", f"one of: {', '.join(_CPUS)}")
        return Target(str(kind), mcpu, _hardware_of(mcpu, cores))


# What a core of each LLVM CPU name offers: features beyond the ones before it, L1d and L2 sizes in KiB.
_AVX2 = ("avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
_VNNI = (*_AVX512, "avx512_vnni")
_ICELAKE = (*_VNNI, "avx512_vbmi", "avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq", "gfni", "vaes")
_AMX = (*_ICELAKE, "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
_CPUS: Mapping[str, tuple[tuple[str, ...], int, int]] = {
    "x86-64": ((), 32, 256),
    "x86-64-v3": (_AVX2, 32, 512),
    "x86-64-v4": (_AVX512, 32, 1024),
    "haswell": (_AVX2, 32, 256),
    "znver3": (_AVX2, 32, 512),
    "znver4": ((*_ICELAKE, "avx512_bf16"), 32, 1024),
    "skylake-avx512": (_AVX512, 32, 1024),
    "cascadelake": (_VNNI, 32, 1024),
    "icelake-server": (_ICELAKE, 48, 1280),
    "sapphirerapids": (_AMX, 48, 2048),
}
_KNOWN_FEATURES = tuple(dict.fromkeys(("avx", *_AMX)))


def native() -> Target:
    """The machine this process runs on: CPU flags and cache sizes as Linux reports them."""
    flags = _cpu_flags()
    features = tuple(name for name in _KNOWN_FEATURES if name in flags)
    generic = ("sapphirerapids", "icelake-server", "cascadelake", "x86-64-v4", "x86-64-v3", "x86-64")
    mcpu = next(name for name in generic if set(_CPUS[name][0]) <= set(features))
    known = _hardware_of(mcpu, len(os.sched_getaffinity(0)), features)
    caches = _cache_sizes()
    hardware = Hardware(
        vector_bytes=known.vector_bytes,
        vector_registers=known.vector_registers,
        fma_per_cycle=known.fma_per_cycle,
        l1d_bytes=caches.get(1, known.l1d_bytes),
        l2_bytes=caches.get(2, known.l2_bytes),
        l3_bytes=caches.get(3, known.l3_bytes),
        cores=known.cores,
        features=features,
    )
    return Target("llvm", mcpu, hardware)


def _hardware_of(mcpu: str, cores: int, features: tuple[str, ...] | None = None) -> Hardware:
    own_features, l1d_kib, l2_kib = _CPUS[mcpu]
    features = own_features if features is None else features
    wide = "avx512f" in features
    return Hardware(
        vector_bytes=64 if wide else 32 if "avx2" in features or "avx" in features else 16,
        vector_registers=32 if wide else 16,
        fma_per_cycle=2 if "fma" in features else 1,
        l1d_bytes=l1d_kib * 1024,
        l2_bytes=l2_kib * 1024,
        l3_bytes=32 * 1024 * 1024,
        cores=cores,
        features=features,
    )


def _hardware_from(data: Mapping[str, Any]) -> Hardware:
    """Read what ``to_json`` wrote; anyone may have written it, so nothing is taken on trust."""
    sizes = [field.name for field in fields(Hardware) if field.name != "features"]
    if set(data) - {"features"} != set(sizes):
        raise InvalidInput("target.hardware", f"gives {', '.join(map(str, data))}", f"give {', '.join(sizes)}")
    for name in sizes:
        if isinstance(data[name], bool) or not isinstance(data[name], int) or not 0 < data[name] < 2**48:
            raise InvalidInput(f"target.hardware.{name}", f"{data[name]!r} is not a size", "an integer above 0")
    features = data.get("features", ())
    if not isinstance(features, list | tuple) or not all(isinstance(name, str) for name in features):
        raise InvalidInput("target.hardware.features", f"{features!r} is not a list of names", "as in [avx2, fma]")
    return Hardware(**{name: data[name] for name in sizes}, features=tuple(features))


def _cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def _cache_sizes() -> dict[int, int]:
    """Bytes of the data (or unified) cache of the first core, by level."""
    sizes: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "type").read_text().strip() != "Instruction":
            text = (index / "size").read_text().strip()
            sizes[int((index / "level").read_text())] = (
                int(text.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]]
            )
    return sizes

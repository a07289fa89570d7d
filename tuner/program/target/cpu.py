"""CPUs, the targets of kind ``llvm``: the limits of their hardware that bound a micro-kernel, and how they are named.

Everything here is read from the operating system; no compiler is needed to name or compare targets.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tuner.errors import MAX_SHOWN, InvalidInput, did_you_mean, shown
from tuner.program.target import tiles
from tuner.program.target.cpu_names import ARM, SPOKEN, TRIPLES, X86, architecture_of, features_of, own_name

MAX_CORES = 4096
WIDTHS: Mapping[int, frozenset[str]] = {
    16: frozenset(),
    32: frozenset({"avx", "avx2", "avx512f"}),
    64: frozenset({"avx512f"}),
}
"""Features of which a CPU must have one, by the bytes of a vector."""
SIZES: Mapping[str, range | tuple[int, ...]] = {
    "vector_bytes": tuple(WIDTHS),
    "vector_registers": (16, 32),
    "fma_per_cycle": range(1, 5),
    "l1d_bytes": range(1, 2**26 + 1),
    "l2_bytes": range(1, 2**32 + 1),
    "l3_bytes": range(1, 2**36 + 1),
    "cores": range(1, MAX_CORES + 1),
}
"""The range of each number of a Hardware."""


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

    @property
    def address_registers(self) -> int:
        """General-purpose registers, that of the stack included: of AArch64, or of x86-64."""
        return 31 if "asimd" in self.features else 16

    def lanes(self, dtype_bytes: int = 4) -> int:
        return self.vector_bytes // dtype_bytes


# Features, and L1d and L2 sizes in KiB, of a core of the usual CPUs. The features of all others that LLVM knows are in
# the table of tuner.program.target.cpu_names, and their caches are taken for CACHES_KIB.
_AVX2 = ("avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
_VNNI = (*_AVX512, "avx512_vnni")
_ICELAKE = (*_VNNI, "avx512_vbmi", "avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq", "gfni", "vaes")
_AMX = (*_ICELAKE, "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
_AMX_FP16 = (*_AMX, "amx_fp16")
_NEON = ("asimd",)
_DOTS = (*_NEON, "asimdhp", "asimddp")
_SVE2 = (*_DOTS, "bf16", "i8mm", "sve", "sve2")
_CPUS: Mapping[str, tuple[tuple[str, ...], int, int]] = {
    "x86-64": ((), 32, 256),
    "x86-64-v3": (_AVX2, 32, 512),
    "x86-64-v4": (_AVX512, 32, 1024),
    "haswell": (_AVX2, 32, 256),
    "znver3": (_AVX2, 32, 512),
    "znver4": ((*_ICELAKE, "avx512_bf16"), 32, 1024),
    "znver5": ((*_ICELAKE, "avx512_bf16"), 48, 1024),
    "skylake-avx512": (_AVX512, 32, 1024),
    "cascadelake": (_VNNI, 32, 1024),
    "icelake-server": (_ICELAKE, 48, 1280),
    "sapphirerapids": (_AMX, 48, 2048),
    "graniterapids": (_AMX_FP16, 48, 2048),
    "cortex-a57": (_NEON, 32, 1024),
    "cortex-a72": (_NEON, 32, 1024),
    "cortex-a76": (_DOTS, 64, 512),
    "neoverse-n1": (_DOTS, 64, 1024),
    "neoverse-v1": ((*_DOTS, "bf16", "i8mm", "sve"), 64, 1024),
    "neoverse-n2": (_SVE2, 64, 1024),
    "neoverse-v2": (_SVE2, 64, 2048),
}
_GENERIC = {
    X86: ("sapphirerapids", "icelake-server", "cascadelake", "x86-64-v4", "x86-64-v3", "x86-64"),
    ARM: ("neoverse-n1", "cortex-a57"),
}
"""Names for a machine that has none of its own, by architecture: the first whose features it has."""
FEATURES: Mapping[str, tuple[str, ...]] = {X86: tuple(dict.fromkeys(("avx", *_AMX_FP16))), ARM: _SVE2}
"""What a target may name, by architecture: as in /proc/cpuinfo, but for FROM_LINUX."""
FROM_LINUX = {"avx512vbmi": "avx512_vbmi"}
"""Features that /proc/cpuinfo spells differently, by its spelling."""
CACHES_KIB = (32, 512)


def read(data: Mapping[str, Any]) -> tuple[str, Hardware]:
    """LLVM's name of a CPU and its hardware, from what a job says of them or ``Target.to_json`` wrote. Raises
    InvalidInput on field ``target`` or one of its own."""
    mcpu, hardware = data.get("mcpu", "x86-64"), data.get("hardware")
    known = ("kind", "mcpu", "mtriple", "num-cores", *(("hardware",) if isinstance(hardware, Mapping) else ()))
    unknown = min((str(name) for name in data if name not in known), default=None)
    if unknown is not None:
        field = f"target.{unknown}" if len(unknown) <= MAX_SHOWN else "target"
        remedy = f"{did_you_mean(unknown, known)}fields: kind, mtriple, mcpu, num-cores"
        raise InvalidInput(field, "is not a field of a target", remedy)
    features_of(mcpu)
    _check_triple(data, str(mcpu))
    if isinstance(hardware, Mapping):
        return str(mcpu), _hardware_from(hardware, str(mcpu))
    cores = data.get("num-cores", os.cpu_count() or 1)
    if isinstance(cores, bool) or not isinstance(cores, int) or not 0 < cores <= MAX_CORES:
        remedy = f"an integer from 1 to {MAX_CORES}"
        raise InvalidInput("target.num-cores", f"{shown(cores)} is not a number of cores", remedy)
    return str(mcpu), _hardware_of(str(mcpu), cores)


def written(hardware: Hardware) -> dict[str, Any]:
    """What ``read`` takes for ``hardware``."""
    return asdict(hardware) | {"features": list(hardware.features)}


def native_cpu() -> tuple[str, Hardware]:
    """The CPU that this process runs on: flags and cache sizes as Linux reports them."""
    described, architecture = _cpuinfo(), platform.machine()
    flags = tiles.usable(_flags_of(described))
    features = tuple(name for name in FEATURES[architecture] if name in flags)
    mcpu = own_name(described, flags) or generic_name(architecture, features)
    known, caches = _hardware_of(mcpu, len(os.sched_getaffinity(0)), features), _cache_sizes()
    return mcpu, replace(
        known,
        l1d_bytes=caches.get(1, known.l1d_bytes),
        l2_bytes=caches.get(2, known.l2_bytes),
        l3_bytes=caches.get(3, known.l3_bytes),
    )


def refused(missing: Collection[str] | None = None) -> str:
    """Why this process may not use features that the CPU has, of those that are ``missing`` if these are given, and the
    remedy; empty if there are none."""
    if missing is not None and not any(map(tiles.is_of_tiles, missing)):
        return ""
    has = _flags_of(_cpuinfo())
    hidden = has - tiles.usable(has)
    return tiles.refusal() if hidden & (hidden if missing is None else set(missing)) else ""


def generic_name(architecture: str, features: Collection[str]) -> str:
    """The name of a usual CPU that has no others than these features."""
    return next(name for name in _GENERIC[architecture] if set(_CPUS[name][0]) <= set(features))


def _hardware_of(mcpu: str, cores: int, features: tuple[str, ...] | None = None) -> Hardware:
    own_features, l1d_kib, l2_kib = _CPUS[mcpu] if mcpu in _CPUS else (features_of(mcpu), *CACHES_KIB)
    features = own_features if features is None else features
    wide, is_arm = "avx512f" in features, architecture_of(mcpu) == ARM
    return Hardware(
        # NEON's, on CPUs with SVE too: the length of its vectors is not known when code is generated.
        vector_bytes=64 if wide else 32 if "avx2" in features or "avx" in features else 16,
        vector_registers=32 if wide or is_arm else 16,
        fma_per_cycle=2 if "fma" in features or is_arm else 1,
        l1d_bytes=l1d_kib * 1024,
        l2_bytes=l2_kib * 1024,
        l3_bytes=32 * 1024 * 1024,
        cores=cores,
        features=features,
    )


def _check_triple(data: Mapping[str, Any], mcpu: str) -> None:
    """A CPU's name tells its architecture. LLVM's triple, where it is given, must be that one's."""
    own = architecture_of(mcpu)
    triple = data.get("mtriple", TRIPLES[own])
    if triple not in TRIPLES.values():
        remedy = f"one of: {', '.join(TRIPLES.values())}; or none, the mcpu tells"
        raise InvalidInput("target.mtriple", f"{shown(triple)} is not known", remedy)
    if triple != TRIPLES[own]:
        other = next(each for each in TRIPLES if TRIPLES[each] == triple)
        remedy = f"an mcpu of {SPOKEN[other]}, as in {_GENERIC[other][0]}, or mtriple {TRIPLES[own]}"
        raise InvalidInput("target.mtriple", f"{mcpu!r} is taken for a CPU of {SPOKEN[own]}", remedy)


def _hardware_from(data: Mapping[str, Any], mcpu: str) -> Hardware:
    """Read what ``to_json`` wrote; anyone may have written it, so nothing is taken on trust.

    ``mcpu``: what CPU it is said to be.
    """
    allowed_features, of_cpu = FEATURES[architecture_of(mcpu)], features_of(mcpu)
    if set(data) - {"features"} != set(SIZES):
        given = ", ".join(str(name)[:MAX_SHOWN] for name in list(data)[: 2 * len(SIZES)])
        raise InvalidInput("target.hardware", f"gives {given or 'nothing'}", f"give {', '.join(SIZES)}")
    for name, allowed in SIZES.items():
        value = data[name]
        if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
            spoken = f"from {allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else f"one of {allowed}"
            raise InvalidInput(f"target.hardware.{name}", f"{shown(value)} is not a size", f"an integer, {spoken}")
    field, features = "target.hardware.features", data.get("features", ())
    if not isinstance(features, list | tuple) or not all(isinstance(name, str) for name in features):
        raise InvalidInput(field, f"{shown(features)} is not a list of names", "as in [avx2, fma]")
    unknown = next((name for name in features if name not in allowed_features), None)
    if unknown is not None or len(set(features)) < len(features):
        problem = f"{shown(unknown)} is not a feature" if unknown is not None else "a feature is named twice"
        raise InvalidInput(field, problem, f"any of: {', '.join(allowed_features)}, each once")
    needed = WIDTHS[data["vector_bytes"]]
    if needed and not needed & {*of_cpu, *features}:
        problem = f"a CPU without {' or '.join(sorted(needed))} has no such vectors"
        raise InvalidInput("target.hardware.vector_bytes", problem, "16, or another mcpu")
    return Hardware(**{name: data[name] for name in SIZES}, features=tuple(features))


def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first core."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _flags_of(described: Mapping[str, str]) -> frozenset[str]:
    """What the CPU has."""
    # x86 and AArch64 call them differently.
    flags = described.get("flags") or described.get("Features", "")
    return frozenset(FROM_LINUX.get(flag, flag) for flag in flags.split())


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

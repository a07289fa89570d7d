"""NumPy's BLAS, which products are compared with: its environment, and which one it is.

Loads no NumPy: the environment counts only for a process that has not loaded it yet.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment that limits NumPy to one thread: BLAS threads spin after their work, and would disturb a measurement."""
HOBBLES = ("OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "BLIS_ARCH_TYPE")
"""Environment that makes a BLAS take kernels of another CPU than the one it runs on."""
INSTRUCTIONS = {"avx": "AVX", "avx2": "AVX2", "avx512f": "AVX-512"}
"""Vector instructions by the feature of a CPU that has them, the newest last."""
OLDER: Mapping[str, str] = {
    **dict.fromkeys(
        ("Katmai", "Coppermine", "Northwood", "Prescott", "Banias", "Core2", "Penryn", "Dunnington"), "avx"
    ),
    **dict.fromkeys(("Nehalem", "Atom", "Nano", "Athlon", "Opteron", "Opteron_SSE3", "Barcelona", "Bobcat"), "avx"),
    **dict.fromkeys(("Sandybridge", "Bulldozer", "Piledriver", "Steamroller", "Excavator"), "avx2"),
    **dict.fromkeys(("Haswell", "Zen"), "avx512f"),
}
"""OpenBLAS's names of its kernels, and the first of INSTRUCTIONS that they do not use. Nothing is said of kernels that
are not listed: those of a new CPU have a new name."""


@dataclass(frozen=True, slots=True)
class Blas:
    """``kernels`` names the CPU that they are for. ``hobbled``: why it is slower than it could be; empty if it is
    not known to be."""

    library: str
    version: str
    kernels: str
    threads: int
    hobbled: str = ""

    def __str__(self) -> str:
        """``openblas 0.3.31, SkylakeX kernels, 1 thread``"""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        text = ", ".join(filter(None, (f"{self.library} {self.version}".strip(), self._kernels, threads)))
        return f"{text}; hobbled: {self.hobbled}" if self.hobbled else text

    @property
    def _kernels(self) -> str:
        return f"{self.kernels} kernels" if self.kernels else ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Blas:
        names = ("library", "version", "kernels", "threads", "hobbled")
        return Blas(**{name: data[name] for name in names if name in data})


def cleaned(environment: MutableMapping[str, str]) -> list[str]:
    """Take the variables of HOBBLES out of an environment; their names."""
    found = [name for name in HOBBLES if name in environment]
    for name in found:
        del environment[name]
    return found


def numpys_blas(features: Collection[str]) -> Blas | None:
    """The BLAS that this process's NumPy has loaded; None where it has none that threadpoolctl knows.

    ``features``: of this machine's CPU, as TVM names them.
    """
    import numpy  # noqa: F401, PLC0415 - see the module
    import threadpoolctl  # noqa: PLC0415

    known = [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]
    # Others may be loaded for SciPy or PyTorch.
    own = sorted(known, key=lambda each: "numpy" not in each["filepath"])
    if not own:
        return None
    version, kernels = str(own[0]["version"] or ""), str(own[0].get("architecture") or "")
    library = str(own[0]["internal_api"])
    return Blas(library, version, kernels, int(own[0]["num_threads"]), hobbled(library, kernels, features, os.environ))


def hobbled(library: str, kernels: str, features: Collection[str], environment: Mapping[str, str]) -> str:
    """Why a BLAS is known to be slower than it could be; empty where nothing is known against it.

    OpenBLAS names its kernels: they count, whoever chose them. Others do not, so what the environment says counts.
    """
    if library != "openblas":
        own = [f"{name}={environment[name]}" for name in HOBBLES if name in environment]
        own = [each for each in own if each.startswith(library.upper())]
        return f"{', '.join(own)} limits its kernels" if own else ""
    if kernels not in OLDER:
        return ""
    names = list(INSTRUCTIONS)
    unused = [INSTRUCTIONS[name] for name in names[names.index(OLDER[kernels]) :] if name in features]
    return f"its {kernels} kernels use no {unused[-1]}, which this CPU has" if unused else ""

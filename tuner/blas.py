"""NumPy's BLAS, which products are compared with: its environment, and which one it is.

Loads no NumPy: the environment counts only for a process that has not loaded it yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment that limits NumPy to one thread: BLAS threads spin after their work, and would disturb a measurement."""
HOBBLES = ("OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "BLIS_ARCH_TYPE")
"""Environment that makes a BLAS take kernels of another CPU than the one it runs on."""
WIDE = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})
"""OpenBLAS's names of its kernels that use AVX-512."""


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
    return Blas(library, version, kernels, int(own[0]["num_threads"]), _hobbled(library, kernels, features))


def _hobbled(library: str, kernels: str, features: Collection[str]) -> str:
    if library == "openblas" and kernels and kernels not in WIDE and "avx512f" in features:
        return f"its {kernels} kernels use no AVX-512, which this CPU has"
    return ""

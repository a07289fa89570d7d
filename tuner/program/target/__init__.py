"""Targets: what code is generated for. A kind of hardware has a module of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import InvalidInput, did_you_mean, shown
from tuner.program.target import cpu, cuda
from tuner.program.target.cpu import Hardware
from tuner.program.target.cpu_names import architecture_of
from tuner.program.target.cuda import Gpu

__all__ = ["READERS", "Gpu", "Hardware", "Target", "gpu_host", "native"]


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for. ``kind`` and ``mcpu`` are LLVM's names; the latter tells the architecture.

    Of a GPU (``kind`` is cuda) ``mcpu`` is the instruction set, as in sm_90, and ``hardware`` is that of the host,
    which runs the dispatcher: any CPU of x86-64.
    """

    kind: str
    mcpu: str
    hardware: Hardware
    gpu: Gpu | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.mcpu})" if self.gpu is None else f"{self.kind}: {cuda.spoken(self.gpu)}"

    @property
    def architecture(self) -> str:
        """The architecture of the CPU that calls run on, a key of ``cpu_names.TRIPLES``."""
        return architecture_of(self.mcpu if self.gpu is None else gpu_host().mcpu)

    def is_measured_on(self, device: Target) -> bool:
        """Whether a device of that target may measure code for this one, by what is known before it is asked."""
        if self.gpu is None or device.gpu is None:
            return self.kind == device.kind
        return not cuda.differs(self.gpu, device.gpu)

    @property
    def fingerprint(self) -> str:
        """Names the target in the database: equal only if every field is."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return f"{self.kind}-{self.mcpu}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_json(self) -> dict[str, Any]:
        if self.gpu is not None:
            return {"kind": self.kind, **cuda.written(self.gpu)}
        return {"kind": self.kind, "mcpu": self.mcpu, "hardware": cpu.written(self.hardware)}

    @staticmethod
    def of_gpu(gpu: Gpu) -> Target:
        """The target of a GPU, called from any CPU of x86-64."""
        return Target("cuda", gpu.arch, gpu_host().hardware, gpu)

    @staticmethod
    def from_json(data: object) -> Target:
        """Read what ``to_json`` wrote, or a job's ``{kind: llvm, mcpu: ..., num-cores: ...}`` or ``{kind: cuda, arch:
        ...}``. Raises InvalidInput."""
        if not isinstance(data, Mapping):
            raise InvalidInput(
                "target", f"{shown(data)} is not a target", "native, or {kind: llvm, mcpu: ..., num-cores: ...}"
            )
        kind = data.get("kind")
        if not isinstance(kind, str) or kind not in READERS:
            remedy = f"{did_you_mean(kind, READERS)}one of: {', '.join(READERS)}"
            raise InvalidInput("target.kind", f"{shown(kind)} is not known", remedy)
        return READERS[kind](data)


def _cpu_target(data: Mapping[str, Any]) -> Target:
    return Target("llvm", *cpu.read(data))


def _gpu_target(data: Mapping[str, Any]) -> Target:
    return Target.of_gpu(cuda.read(data)[1])


def gpu_host() -> Target:
    """The CPU that runs the dispatcher of a GPU's library: any of x86-64."""
    return _cpu_target({"mcpu": "x86-64", "num-cores": 1})


READERS: Mapping[str, Callable[[Mapping[str, Any]], Target]] = {"llvm": _cpu_target, "cuda": _gpu_target}
"""Functions by kind that read a target from JSON. Raise InvalidInput."""


def native() -> Target:
    """The machine this process runs on."""
    return Target("llvm", *cpu.native_cpu())

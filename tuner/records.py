"""Results of trials: the values that builders, runners, policies and the database exchange."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tuner.blas import Blas
from tuner.program.job.cache import CACHES, Cache
from tuner.program.language.workload import WorkloadInstance
from tuner.schedule.space import MicroKernel

PROTOCOL = "v3"
"""Names the way latencies are measured (see tuner/measure), caches warm; records of different protocols never mix."""


def protocol_of(cache: Cache) -> str:
    """The name of the way that latencies are measured in that state of the caches: ``v3``, ``v3-cold``."""
    return PROTOCOL if cache is Cache.WARM else f"{PROTOCOL}-{cache.value}"


def cache_of(protocol: str) -> Cache:
    """The state of the caches that a protocol names, of this version or another."""
    name = protocol.rpartition("-")[2]
    return Cache(name) if name in CACHES else Cache.WARM


PROTOCOLS = tuple(map(protocol_of, Cache))
"""Those that this version measures by."""

MAX_DRIFT = 2.0
"""The most that a device's speed is believed to have changed by between two measurements."""


class ErrorKind(StrEnum):
    """Why a trial has no latency.

    MACHINE: the machine failed, not the kernel: no memory, no room on a disk, a device that was restarted. It says
    nothing of the kernel, which may be tried again.
    """

    BUILD = "build"
    BUILD_TIMEOUT = "build_timeout"
    CRASH = "crash"
    WRONG = "wrong"
    RUN_TIMEOUT = "run_timeout"
    DEVICE = "device"
    MACHINE = "machine"


DISQUALIFYING = (ErrorKind.WRONG, ErrorKind.CRASH)
"""A kernel with such a trial at any instance is the best of nothing, however fast it is elsewhere."""


class Phase(StrEnum):
    """What a trial was for.

    KNOWN times again what earlier searches of the workload found to be the best. THEORY measures the kernel set that
    the cost model chose before anything was measured: the default. SEARCH is what a policy suggests after it, FINAL the
    finalists' side-by-side timing.
    """

    KNOWN = "known"
    THEORY = "theory"
    SEARCH = "search"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """The result of one trial: a latency, or an error kind and message. ``latency_s`` is the median of ``samples_s``.

    ``predicted_s`` is the cost model's prediction before the trial, ``round`` the search round that chose it,
    ``attempt`` counts repeats of the same (kernel, instance) within one search task, from 0. ``anchor_s`` is what a
    fixed piece of work took between the samples (tuner.measure.timing.protocol): the speed of the device's core.
    ``device`` is the id of the device that ran it, ``ended_s`` when it was done, on this machine's monotonic clock:
    it becomes the time since then when it is stored, and means nothing anywhere else.
    """

    kernel: MicroKernel
    instance: WorkloadInstance
    latency_s: float | None = None
    samples_s: tuple[float, ...] = ()
    error_kind: ErrorKind | None = None
    error: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    predicted_s: float | None = None
    round: int = 0
    phase: Phase = Phase.SEARCH
    attempt: int = 0
    anchor_s: float | None = None
    device: str | None = None
    ended_s: float | None = field(default=None, compare=False)

    @property
    def ok(self) -> bool:
        return self.latency_s is not None

    @property
    def is_theory(self) -> bool:
        """Whether this is a trial of the default.

        Records from before THEORY was a phase of its own have it as round 0 of the search.
        """
        return self.phase is Phase.THEORY or (self.phase is Phase.SEARCH and self.round == 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel.to_json(),
            "kernel_id": self.kernel.id,
            "instance": self.instance.to_json(),
            "latency_s": self.latency_s,
            "samples_s": list(self.samples_s),
            "error_kind": self.error_kind.value if self.error_kind else None,
            "error": self.error,
            "build_s": self.build_s,
            "run_s": self.run_s,
            "predicted_s": self.predicted_s,
            "round": self.round,
            "phase": self.phase.value,
            "attempt": self.attempt,
            "anchor_s": self.anchor_s,
            "device": self.device,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MeasureResult:
        kind = data.get("error_kind")
        return MeasureResult(
            kernel=MicroKernel.from_json(data["kernel"]),
            instance=WorkloadInstance.from_json(data["instance"]),
            latency_s=data.get("latency_s"),
            samples_s=tuple(data.get("samples_s", ())),
            error_kind=ErrorKind(kind) if kind else None,
            error=data.get("error", ""),
            build_s=data.get("build_s", 0.0),
            run_s=data.get("run_s", 0.0),
            predicted_s=data.get("predicted_s"),
            round=data.get("round", 0),
            phase=Phase(data.get("phase", "search")),
            attempt=data.get("attempt", 0),
            anchor_s=data.get("anchor_s"),
            device=data.get("device"),
        )


def speed_correction(measured_anchor_s: float | None, anchor_s: float | None) -> float:
    """The factor that takes a latency measured while the anchor took ``measured_anchor_s`` to the speed at which it
    takes ``anchor_s``; 1 where either is not known."""
    if not measured_anchor_s or not anchor_s:
        return 1.0
    return min(max(anchor_s / measured_anchor_s, 1 / MAX_DRIFT), MAX_DRIFT)


def settled_latency_s(readings: Sequence[tuple[float, bool]]) -> tuple[float, int]:
    """The latency that several readings of one kernel at one instance give, and how many of them decided.

    Each reading is seconds at one speed, and whether it is of the finalists' side-by-side timing. The median: the
    fastest would be the luckiest. Of the side-by-side readings alone where there are any.
    """
    final = [latency_s for latency_s, is_final in readings if is_final]
    deciding = final or [latency_s for latency_s, _ in readings]
    return statistics.median(deciding), len(deciding)


NUMPY = "numpy"
"""The baseline that is NumPy's BLAS."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The latency of another library at one instance, on the device that the trials ran on.

    ``name`` is the library's: ``numpy`` is the product alone (no epilogue) by NumPy's BLAS. ``anchor_s`` as of a trial.
    """

    name: str
    instance: WorkloadInstance
    latency_s: float
    anchor_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        instance = self.instance.to_json()
        return {"name": self.name, "instance": instance, "latency_s": self.latency_s, "anchor_s": self.anchor_s}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Baseline:
        instance = WorkloadInstance.from_json(data["instance"])
        return Baseline(data["name"], instance, data["latency_s"], data.get("anchor_s"))


@dataclass(frozen=True, slots=True)
class Roof:
    """A device's measured peak, for rooflines: multiply-adds in registers and reading memory, on the task's
    threads. ``flops_per_s`` counts a multiply-add as two."""

    flops_per_s: float
    bytes_per_s: float
    anchor_s: float | None = None


@dataclass(frozen=True, slots=True)
class Baselines:
    """What the kernels of one search task are compared with, measured as its search begins. NumPy's points and a roof
    that a kernel has surpassed are measured again at its end. ``blas`` is NumPy's."""

    points: tuple[Baseline, ...] = ()
    roof: Roof | None = None
    blas: Blas | None = None

    def to_json(self) -> dict[str, Any]:
        roof = self.roof
        return {
            "points": [point.to_json() for point in self.points],
            "roof": {"flops_per_s": roof.flops_per_s, "bytes_per_s": roof.bytes_per_s, "anchor_s": roof.anchor_s}
            if roof
            else None,
            "blas": self.blas.to_json() if self.blas else None,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> Baselines:
        if not data:
            return NO_BASELINES
        return Baselines(
            tuple(Baseline.from_json(point) for point in data["points"]),
            Roof(**data["roof"]) if data["roof"] else None,
            Blas.from_json(data["blas"]) if data.get("blas") else None,
        )


NO_BASELINES = Baselines()


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """A measured (micro-kernel, instance) with everything that its latency depends on, as the database holds it."""

    workload_key: str
    target_fingerprint: str
    threads: int
    protocol: str
    result: MeasureResult
    seq: int = 0
    job_id: str | None = None
    search_task_id: int | None = None
    created_at: str = ""
    provenance: str = "measured"

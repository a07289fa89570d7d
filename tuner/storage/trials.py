"""Parts of a table of trials: what is asked for, and the lines that it has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind, Phase
from tuner.schedule.space import MicroKernel


class TrialOrder(StrEnum):
    """What a table of trials is ordered by. Trials that have no such figure come last, either way."""

    STORED = "stored"
    LATENCY = "latency"
    PREDICTED = "predicted"
    ROUND = "round"
    KERNEL = "kernel"
    BUILD = "build"
    RUN = "run"


SUCCEEDED, FAILED = "none", "any"
"""Values of ``error`` beside the kinds."""


@dataclass(frozen=True, slots=True)
class TrialQuery:
    """A part of a table of one search task's trials: those that all of ``error``, ``kernel``, ``instance`` and
    ``phase`` let through, from ``cursor`` on.

    ``error`` is a kind, SUCCEEDED or FAILED; ``kernel`` the beginning of an id; ``instance`` as ``S=3,T=7``.
    """

    error: ErrorKind | str = ""
    kernel: str = ""
    instance: str = ""
    phase: Phase | None = None
    order: TrialOrder = TrialOrder.STORED
    descending: bool = False
    cursor: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A trial in a table. Times are in seconds, as they were measured."""

    seq: int
    kernel_id: str
    kernel: MicroKernel
    instance: WorkloadInstance
    latency_s: float | None
    predicted_s: float | None
    samples_s: tuple[float, ...]
    error_kind: str | None
    error: str
    round: int
    phase: str
    attempt: int
    build_s: float
    run_s: float
    anchor_s: float | None
    device: str | None
    created_at: str


@dataclass(frozen=True, slots=True)
class TrialFacet:
    """How many trials of a search task have this error (None: they succeeded), this phase and this instance."""

    error_kind: str | None
    phase: str
    instance: str
    trials: int


@dataclass(frozen=True, slots=True)
class TrialTable:
    """A part of a table of trials; ``cursor`` asks for the next part, None at the end."""

    items: tuple[TrialLine, ...]
    cursor: str | None

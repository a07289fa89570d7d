"""Keeping the database healthy: its figures, what an upgrade made incomparable, what may be deleted, and imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.program.job.cache import Cache


@dataclass(frozen=True, slots=True)
class DevicePulse:
    """A device as monitoring sees it. ``busy`` is the part of the last minute that its trials ran, from 0 to 1."""

    id: str
    key: str
    seen_age_s: float
    busy: float


@dataclass(frozen=True, slots=True)
class Pulse:
    """Figures for monitoring, all at one moment.

    ``queue_age_s``: how long ago the oldest waiting job was submitted, 0 if none waits. ``trials`` and ``events`` only
    grow. ``failed_trials``: those that are stored, by error kind. ``connections``: of this process's pool, by state.
    """

    jobs: Mapping[str, int]
    queue_age_s: float
    trials: int
    events: int
    records: int
    failed_trials: Mapping[str, int]
    devices: tuple[DevicePulse, ...]
    connections: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StaleKnowledge:
    """What is known of one workload on one target, and may not be compared with anything that is measured today.

    ``reason`` is ``protocol`` (measured in another way), ``rule`` (kernels of another version of their rule),
    ``imported`` (measured elsewhere) or ``toolchain`` (the newest library was built by another compiler); ``detail``
    names what, ``count`` says how many records, or libraries. ``remeasured``: whether there are comparable records of
    the same workload, target, threads and caches by now.
    """

    workload_key: str
    label: str
    target_fingerprint: str
    threads: int
    cache: Cache
    reason: str
    detail: str
    count: int
    newest_at: str
    remeasured: bool


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be deleted; None keeps it all. Successful records are never deleted.

    ``events_older_than_s``: progress, trials and log events of jobs that ended before; those of states and libraries
    stay. ``failed_trials_older_than_s``: trials of such jobs that failed for want of a build, of time or of a device;
    those that found a kernel wrong, or saw it crash, stay. ``superseded_artifacts``: libraries that another one
    replaced, and that no alias names.
    """

    events_older_than_s: float | None = None
    failed_trials_older_than_s: float | None = None
    superseded_artifacts: bool = False


@dataclass(frozen=True, slots=True)
class Prunable:
    """Rows of one kind: ``events``, ``failed_trials`` or ``superseded_artifacts``. ``bytes`` is their content's size,
    without that of indexes."""

    what: str
    rows: int
    bytes: int


IMPORTED = "imported"
"""The provenance of a record that was measured for another database: it decides nothing until it is measured here."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of records that were imported: ``added``, and ``known``, which were there already."""

    added: int = 0
    known: int = 0

    def __add__(self, other: Imported) -> Imported:
        return Imported(self.added + other.added, self.known + other.known)

"""Events of a job, as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.program.language.workload import JsonObject


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append: ``kind`` is one of state, trials, progress, log, baselines, reused, library; ``data`` is what
    it carries."""

    kind: str
    data: JsonObject


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job. ``seq`` counts from 1 without gaps within the job, in commit order."""

    job_id: str
    seq: int
    kind: str
    data: JsonObject
    created_at: str


class CommitWatch(Protocol):
    """Tells at next to no cost whether there can be anything new. For one thread; holds one connection."""

    def changed(self) -> bool:
        """Whether anything was committed since the last call, by anyone; true at the first. Raises StorageUnavailable,
        and is true at the call after it."""

    def close(self) -> None:
        """Give the connection back. It may be used again afterwards."""


class EventStorage(Protocol):
    """Reading the events of a job. Only the holder of a lease appends them."""

    def list_events(self, job_id: str, after: int = 0, limit: int = 1000) -> tuple[JobEvent, ...]:
        """Events with seq above ``after``, in order. Raises NotFound."""

    def newest_events(self, job_id: str, kinds: Sequence[str], limit: int = 200) -> tuple[JobEvent, ...]:
        """The last events of these kinds, in order. Raises NotFound."""

    def last_event(self, job_id: str) -> int:
        """The seq of the job's newest event. Raises NotFound."""

    def last_events(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        """The seq of the newest event of each of these jobs; jobs that do not exist are left out."""

    def watch_commits(self) -> CommitWatch:
        """Polled often by whoever waits for events, who calls ``last_events`` only when it says so."""

"""Where tuned libraries come from: a service, directories, snapshots. None of them can break a build.

A source answers for one workload at a time: a loaded library, or why there is none. One that cannot be
queried (``SourceAway``) is queried no more; what was kept on disk earlier takes its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shapewright.sources.candidates import Candidate, fitting_of
from tuner.errors import ShapewrightError
from tuner.program.language.workload import Workload
from tuner.program.target import Target

if TYPE_CHECKING:
    from shapewright.library import Library

SourceLike = str | Path | Sequence[str | Path]
"""The URL of a service, a directory, a snapshot file; or several, which are queried in turn."""


class SourceAway(ShapewrightError):
    """A source that cannot be queried: a service that does not answer, a file that is damaged."""


@dataclass(frozen=True)
class Match:
    """A library for a workload. ``how``: ``exact``, or ``covers`` for one of more general extents."""

    library: Library
    how: str
    source: str

    @property
    def cache(self) -> str:
        """The state of the caches that it was tuned for."""
        return self.library.dispatcher.task.cache.value

    def other_cores(self, target: Target) -> int | None:
        """The number of cores that it was tuned on, where ``target`` has another one."""
        cores = self.library.tuned_on_cores
        return None if cores == target.hardware.cores else cores


class Source(Protocol):
    """Something that has libraries for this machine."""

    @property
    def name(self) -> str:
        """What the user gave."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why libraries that it has do not count, by what names them; more may be found with every workload."""

    def find(self, workload: Workload, threads: int) -> Match | str:
        """The library for ``workload`` with ``threads`` threads, or why there is none: the first by
        ``preference``, of this very workload before those that cover it. Raises SourceAway."""


class Listed(ABC):
    """A source that lists its libraries by what their manifests say."""

    def __init__(self, path: Path, target: Target) -> None:
        self.name = str(path)
        self.left_out: dict[str, str] = {}
        self._path = path
        self._target = target

    @property
    @abstractmethod
    def _by_program(self) -> Mapping[str, Sequence[Candidate]]:
        """Its libraries by ``program_key``. Raises SourceAway."""

    @abstractmethod
    def _library(self, candidate: Candidate) -> Library:
        """One of them, loaded. Raises ShapewrightError and OSError."""

    @abstractmethod
    def _named(self, candidate: Candidate) -> str:
        """What people call it."""

    def find(self, workload: Workload, threads: int) -> Match | str:
        fitting = fitting_of(self._by_program, workload, threads, self._target)
        if isinstance(fitting, str):
            return fitting
        reason = ""
        # One that is damaged leaves its place to the next.
        for each in fitting:
            try:
                return Match(self._library(each), each.match_of(workload), self.name)
            except (ShapewrightError, OSError) as error:
                reason = self.left_out[self._named(each)] = str(error)
        return reason

"""Searches as figures and pages need them: records and events read once, kept, and added to as more are stored.

A search of 100,000 trials takes seconds to read; a page that follows it polls every second. So the searches that were
requested last stay in memory, and only new records are read.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from anyio import CapacityLimiter
from fastapi import Depends, Request

from tuner.errors import ShapewrightError
from tuner.figures.view import SearchView, importance_in, progress_of
from tuner.library.dispatcher import Dispatcher
from tuner.program.target.calibration import Levels
from tuner.search.importance import Importance
from tuner.search.observations import compared_at
from tuner.search.summary import SearchSummary
from tuner.storage import Artifact, Job, NotFound, SearchTaskRow, StorageUnavailable
from tuner.storage.errors import reading
from tuner.storage.sql import ClientStorage, DeviceStorage, Storage
from tuner.storage.sql.task_results import TaskResults

_log = logging.getLogger(__name__)

BATCH = 5000
"""Events that are read at once."""
MAX_KEPT = 400_000
"""Results and events of all cached searches, except the one requested last."""
MAX_SEARCHES = 100
MAX_FIGURES = 128
AT_ONCE = 2
"""Threads that make figures. They are not those of other requests, which never wait for a figure; and few, so that the
other requests get their share of the interpreter."""


@dataclass
class _Search:
    """One search task, as far as it has been read."""

    known: TaskResults
    lock: threading.Lock = field(default_factory=threading.Lock)
    progress: list[SearchSummary] = field(default_factory=list)
    events_after: int = 0
    dispatcher: Dispatcher | None = None
    levels: Levels | None = None
    importance: Importance | None = None
    shown: tuple[str, SearchView] | None = None

    @property
    def size(self) -> int:
        return len(self.known.results) + len(self.progress)

    def read(self, storage: Storage, job: Job, row: SearchTaskRow) -> None:
        """Read what has been stored since the last call."""
        if self.known.after == 0:
            # A device is calibrated before the first trial: once there is one, this stays as it is.
            self.levels = levels_of(storage, job, row)
        while storage.read_results(self.known):
            pass
        self._read_progress(storage, job, row)
        if self.dispatcher is None and (artifact := library_of(storage, job, row)) is not None:
            self.dispatcher = Dispatcher.from_json(artifact.dispatch)

    def _read_progress(self, storage: Storage, job: Job, row: SearchTaskRow) -> None:
        while events := storage.list_events(job.id, self.events_after, BATCH):
            self.progress += progress_of(events, row.position)
            self.importance = importance_in(events, row.position) or self.importance
            self.events_after = events[-1].seq


class Searches:
    """The searches and figures of one service. Safe to use from several threads.

    ``limiter`` has the threads that figures are made in.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self.limiter = CapacityLimiter(AT_ONCE)
        self._kept: OrderedDict[int, _Search] = OrderedDict()
        self._figures: OrderedDict[tuple[str, str], str] = OrderedDict()

    def view(self, job: Job, row: SearchTaskRow) -> tuple[SearchView, str]:
        """The current state of the search, and a version that changes with it. Raises StorageUnavailable."""
        search = self._search(row.id)
        with search.lock:
            search.read(self._storage, job, row)
            version = (
                f"{job.id}.{row.id}.{search.known.after}.{search.events_after}.{int(search.dispatcher is not None)}"
            )
            if search.shown is not None and search.shown[0] == version:
                return search.shown[1], version
            view = SearchView(
                row.task,
                tuple(search.known.results),
                tuple(search.progress),
                search.dispatcher,
                compared_at(row.baselines, search.known.anchor_s),
                search.levels,
                search.importance,
            )
            search.shown = (version, view)
            return view, version

    def figure(self, name: str, version: str, make: Callable[[], str]) -> str:
        """The figure ``name`` at ``version`` as JSON: cached, or made now."""
        with self._lock:
            if (known := self._figures.get((name, version))) is not None:
                self._figures.move_to_end((name, version))
                return known
        made = make()
        with self._lock:
            self._figures[(name, version)] = made
            while len(self._figures) > MAX_FIGURES:
                self._figures.popitem(last=False)
        return made

    def _search(self, search_task_id: int) -> _Search:
        with self._lock:
            search = self._kept.setdefault(search_task_id, _Search(TaskResults(search_task_id)))
            self._kept.move_to_end(search_task_id)
            others = sum(kept.size for kept in self._kept.values()) - search.size
            while others > MAX_KEPT or len(self._kept) > MAX_SEARCHES:
                others -= self._kept.popitem(last=False)[1].size
            return search


def _searches(request: Request) -> Searches:
    return cast(Searches, request.app.state.searches)


SearchesDep = Annotated[Searches, Depends(_searches)]


def levels_of(storage: DeviceStorage, job: Job, row: SearchTaskRow) -> Levels | None:
    """What devices of the job's key read from each level of memory, by the first that has measured it."""
    devices = (device for device in storage.list_devices() if device.key == job.device)
    found = (device.calibration(row.task.known_target, row.task.threads) for device in devices)
    return next((each.levels for each in found if each is not None and each.levels is not None), None)


def library_of(storage: ClientStorage, job: Job, row: SearchTaskRow) -> Artifact | None:
    """The library of this search, None before it is built, or if it cannot be read."""
    if not row.done:
        return None
    try:
        result = storage.latest_artifact(row.workload_key, row.target_fingerprint, job.id)
        with reading(f"the dispatch table of library {result.digest}"):
            Dispatcher.from_json(result.dispatch)
        return result
    except NotFound:
        return None
    except StorageUnavailable:
        raise
    except ShapewrightError as error:
        # What else is known of the search can still be shown.
        _log.error("%s", error)
        return None

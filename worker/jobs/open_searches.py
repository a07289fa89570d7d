"""The searches of a job that are kept in memory between the pieces of its budget."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from tuner.measure import Runner
from tuner.program.job.task import SearchTask
from tuner.search.reuse import shared_knowledge
from tuner.search.summary import Stage
from tuner.search.tuning import SearchStart, SearchTools
from tuner.storage import NewEvent, SearchTaskRow
from tuner.storage.jsonl import SharedRecord
from worker.jobs.leased_job import LeasedJob
from worker.jobs.recorder import LeaseRecorder
from worker.jobs.task_search import OpenSearch, TaskSearch, Tools

MAX_LIVE = 16
"""Searches that are kept in memory. Another one is begun again from its records when its turn comes."""


@dataclass
class OpenSearches:
    """Begins the searches of a job's tasks, from what is recorded, and keeps those that were used last.

    Methods may be called from several threads, each for a position that is its own for the while. ``should_stop`` is
    what searches ask; ``wall_s`` the job's wall time, which is recorded with results where it says one.
    """

    job: LeasedJob
    tools: Tools
    open_search: OpenSearch
    shared: Sequence[SharedRecord]
    should_stop: Callable[[], bool]
    wall_s: Callable[[], float | None]
    at_rates: Callable[[SearchTaskRow], SearchTask]
    """A row's task, with what theory takes for its device."""
    _live: OrderedDict[int, TaskSearch] = field(default_factory=OrderedDict)
    """Searches by position, the one used last at the end."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __contains__(self, position: int) -> bool:
        return position in self._live

    @property
    def latest_first(self) -> list[int]:
        with self._lock:
            return list(reversed(self._live))

    def get(self, position: int, runner: Runner, in_use: Callable[[], Collection[int]]) -> TaskSearch:
        """The search of a task; begun again from its records, to measure by ``runner``, if it is not in memory.

        Those ``in_use`` stay in memory, and this one. Raises BuilderLost and what reading the records raises.
        """
        with self._lock:
            search = self._live.get(position)
            if search is not None:
                self._live.move_to_end(position)
            surplus = self._surplus({position, *in_use()})
        for each in surplus:
            each.close()
        if search is None:
            search = self._opened(position, runner)
            with self._lock:
                self._live[position] = search
        return search

    def _surplus(self, in_use: Collection[int]) -> list[TaskSearch]:
        """Take out the ones used least lately, until there is room for those in use."""
        unused = [position for position in self._live if position not in in_use]
        return [self._live.pop(position) for position in unused[: max(0, len(in_use) + len(unused) - MAX_LIVE)]]

    def _opened(self, position: int, runner: Runner) -> TaskSearch:
        job = self.job
        row = job.task(job.lease.tasks[position].id)
        recorder = LeaseRecorder(job, row, self.wall_s)
        # At once: what follows may take a process of its own, and theory for every shape.
        planning = replace(job.summary(position), phase=Stage.PLAN, step=None, steps=None)
        recorder.record([], [NewEvent("progress", planning.to_json())], None, planning)
        knowledge = job.knowledge(row) + shared_knowledge(self.shared, row.task)
        return self.open_search(
            self.at_rates(row),
            SearchTools(self.tools.builder(), runner, recorder, self.should_stop, job.cancelling),
            SearchStart(job.records(row), row.baselines, knowledge, row.spent_s),
            policy=job.policy,
            seed=job.seed,
            parallel_builds=self.tools.parallel_builds(job.device, row.task.threads),
        )

    def close_one(self, position: int) -> None:
        with self._lock:
            search = self._live.pop(position)
        search.close()

    def close(self) -> None:
        """All of them. Not while one is in use."""
        while self._live:
            self._live.popitem()[1].close()

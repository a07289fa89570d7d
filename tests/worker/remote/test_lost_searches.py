"""Processes of searches that die in the middle of a job, on a real database: nothing is lost, or stored twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.workers import SimulatedTools
from tests.contract.samples import JOB
from tests.measuring import wait_for
from tests.shares import diagonal
from tests.worker.jobs.searching import LocalLink
from tuner.measure.runners.simulated import Fleet
from tuner.program.job.jobspec import parse_job
from tuner.records import MeasureResult
from tuner.storage import Job, JobState, Lease
from tuner.storage.sql import Storage
from worker.jobs.runner import JobRunner
from worker.jobs.searches import LOSSES
from worker.remote.actors import JobActors
from worker.remote.messages import Answer, Call, FromHost, ToHost
from worker.remote.search import SearchLost, SearchProcess

TRIALS = 32


class DyingLink(LocalLink):
    """Dies of the first call for which ``kills`` is true: when it is made, or when it is answered."""

    def __init__(self, kills: Callable[[Call], bool], *, answered: bool) -> None:
        super().__init__()
        self._kills, self._answered = kills, answered
        self._last: set[int] = set()

    def poll(self, wait_s: float) -> Sequence[FromHost]:
        messages = super().poll(wait_s)
        for message in messages:
            if isinstance(message, Call) and self._kills(message):
                if not self._answered:
                    self.die()
                self._last.add(message.id)
        return messages

    def deliver(self, messages: Sequence[ToHost]) -> None:
        for message in messages:
            if isinstance(message, Answer) and message.id in self._last:
                self.die()
                raise SearchLost("it has died over an answer")
        super().deliver(messages)


class Bed:
    """A job whose processes of searches die as they are told."""

    def __init__(self, storage: Storage, spec: Any = None) -> None:
        self.storage, self.links = storage, list[LocalLink]()
        self.job_id = storage.create_job(parse_job(spec or {**JOB, "budget": {"trials": TRIALS}}))[0].id
        self.fleet = Fleet(1)

    def run(self, links: Callable[[int], LocalLink], storage: Any = None) -> JobState | None:
        lease = self.storage.lease_job("w", 60.0)
        assert lease is not None

        def take() -> SearchProcess:
            self.links.append(links(len(self.links)))
            return SearchProcess(self.links[-1])

        actors = JobActors(take)
        tools = SimulatedTools(self.fleet)
        state = JobRunner(storage or self.storage, tools, open_search=actors.open, heartbeat_s=0.05).run(lease)
        actors.close()
        return state

    @property
    def job(self) -> Job:
        return self.storage.get_job(self.job_id)

    def said(self) -> list[str]:
        events = self.storage.list_events(self.job_id, limit=10_000)
        return [event.data["message"] for event in events if event.kind == "log" and "level" in event.data]

    def check(self, budget: int = TRIALS) -> None:
        """As many records as were counted, within the budget, the readings of each kernel numbered without a gap."""
        trials = self.storage.list_trials(self.job_id, limit=10_000)
        assert len(trials) == self.job.trials <= budget
        attempts: dict[Any, list[int]] = {}
        for trial in trials:
            result = trial.result
            attempts.setdefault((trial.search_task_id, result.kernel, result.instance), []).append(result.attempt)
        assert all(sorted(numbers) == list(range(len(numbers))) for numbers in attempts.values())
        assert all(row.done for row in self.storage.search_tasks(self.job_id))


def nth(method: str, number: int) -> Callable[[Call], bool]:
    """True for the call of that number of a method."""
    seen: Counter[str] = Counter()

    def kills(call: Call) -> bool:
        seen[call.method] += 1
        return call.method == method and seen[method] == number

    return kills


@pytest.mark.parametrize(
    ("method", "when"), diagonal(["build", "run", "record", "library", "verify"], ["asked", "answered"], every=5)
)
def test_a_job_goes_on_when_the_process_of_its_search_dies(storage: Storage, method: str, when: str) -> None:
    bed, number = Bed(storage), 3 if method in ("build", "run", "record") else 1
    kills = nth(method, number)
    assert (
        bed.run(lambda made: LocalLink() if made else DyingLink(kills, answered=when == "answered"))
        is JobState.COMPLETED
    )
    assert len(bed.links) == 2
    (warning,) = bed.said()
    assert "the process of a search is gone: it has died" in warning
    bed.check()


def test_what_was_being_recorded_is_waited_for(storage: Storage) -> None:
    """Otherwise whoever begins again would read the records before it was there."""
    bed, stored = Bed(storage), threading.Event()

    class Slow:
        """Stores a batch only after its search has died."""

        def __getattr__(self, name: str) -> Any:
            return getattr(storage, name)

        def append_results(self, lease: Lease, task: int, results: Sequence[Any], *more: Any) -> None:
            if results and not stored.is_set():
                (link,) = bed.links
                link.die()
                wait_for(lambda: all(thread.name != "searches" for thread in threading.enumerate()))
                stored.set()
            storage.append_results(lease, task, results, *more)

    assert bed.run(lambda made: LocalLink(), Slow()) is JobState.COMPLETED
    assert stored.is_set()
    bed.check()


def test_a_search_that_always_kills_its_process_fails_the_attempt(storage: Storage) -> None:
    bed = Bed(storage)
    state = bed.run(lambda made: DyingLink(nth("build", 1), answered=False))
    assert state is JobState.WAITING
    assert len(bed.links) == LOSSES
    assert "the process of a search is gone: it has died" in bed.job.error
    assert bed.job.trials == 0


def test_an_answer_that_cannot_be_sent_is_an_error_of_the_job(storage: Storage) -> None:
    bed = Bed(storage)
    bed.fleet.readings = lambda task, request, *_: [  # type: ignore[method-assign]
        MeasureResult(request.build.kernel, at, 1e-3, error=threading.Lock())  # type: ignore[arg-type]
        for at in request.instances
    ]
    assert bed.run(lambda made: LocalLink()) is JobState.FAILED
    assert "cannot pickle" in bed.job.error


def test_the_searches_of_a_job_share_processes(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.remote.actors.SEARCHES_PER_ACTOR", 2)
    plain = {name: value for name, value in JOB.items() if name != "workload"}
    workloads = [{"op": "dense", "args": {"m": "T", "n": 32, "k": 32 * (number + 1)}} for number in range(3)]
    trials = 16 * len(workloads)
    bed = Bed(storage, {**plain, "workloads": workloads, "budget": {"trials": trials}})
    assert bed.run(lambda made: LocalLink()) is JobState.COMPLETED
    assert len(bed.links) == 2
    bed.check(trials)

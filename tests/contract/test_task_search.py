"""What the search of a task does wherever it runs: in this process, behind messages, and in a Ray actor."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.contract.samples import JOB
from tests.fakes import FakeRecorder
from tests.measuring import wait_for
from tests.searching import quick_policies
from tests.shares import chosen, spread
from tests.worker.jobs.searching import local_searches
from tuner.errors import InvalidInput
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure import BuilderLost, BuildResult, DeviceFailed, DeviceLost, LibraryFailed, Runner
from tuner.measure.runners.simulated import Fleet, SimulatedBuilder
from tuner.program.job.jobspec import Budget, parse_job
from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult, TuningRecord
from tuner.schedule.space import MicroKernel
from tuner.search.search import Search
from tuner.search.summary import EndedBy, Stage
from tuner.search.tuning import Cancelled, Finishing, SearchStart, SearchTools, VerificationFailed
from tuner.storage import LeaseLost, StorageUnavailable
from worker.building.cluster import Cluster
from worker.jobs.searches import OpenSearch, TaskSearch
from worker.remote.actors import JobActors, SearchActors

pytestmark = pytest.mark.together("ray")
TASK = parse_job(JOB).tasks[0]
TRIALS = Budget(24, None)
FOREVER_S = 1000.0
BINARY = b"simulated"
OBJECT = b"object"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_policies(monkeypatch)


@pytest.fixture(scope="module")
def actors(cluster: Cluster) -> Iterator[SearchActors]:
    result = SearchActors(alive=cluster.alive)
    result.start()
    yield result
    result.close()


RAY = pytest.param("ray", marks=pytest.mark.soak)
"""An actor is a process, which takes seconds to start: `make test` has those of jobs (test_search_actors.py)."""


@pytest.fixture(params=["here", "messages", RAY])
def open_search(request: pytest.FixtureRequest) -> Iterator[OpenSearch]:
    if request.param == "here":
        yield Search
    elif request.param == "messages":
        with local_searches() as opened:
            yield opened
    else:
        made: SearchActors = request.getfixturevalue("actors")
        job = JobActors(made.take)
        yield job.open
        job.close()


@dataclass
class Builder:
    """Builds as if, unless it is to raise."""

    error: Exception | None = None
    library_error: Exception | None = None

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        if self.error is not None:
            raise self.error
        assert task.workload == TASK.workload
        return [replace(each, code=OBJECT) for each in SimulatedBuilder().build(task, kernels)]

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        if self.library_error is not None:
            raise self.library_error
        assert set(objects.values()) <= {OBJECT}
        return SimulatedBuilder().library(dispatcher, job_id, objects)

    def close(self) -> None:
        """Nothing to end."""


class Wrapped:
    """A runner that raises ``errors`` of its methods, by name, and is given whole binaries."""

    def __init__(self, runner: Runner, errors: Mapping[str, Exception], is_wrong: bool) -> None:
        self.runner, self.errors, self.is_wrong = runner, errors, is_wrong
        self.devices = runner.devices

    def run(self, task: SearchTask, requests: Any, interrupted: Any) -> list[MeasureResult]:
        self._raise("run")
        assert {each.build.binary for each in requests} == {BINARY}
        return self.runner.run(task, requests, interrupted)

    def verify(self, task: SearchTask, build: BuildResult, dims: Any, interrupted: Any) -> Any:
        self._raise("verify")
        assert build.binary == BINARY
        return [(point, "wrong") for point in dims] if self.is_wrong else []

    def baselines(self, task: SearchTask, instances: Any) -> Any:
        self._raise("baselines")
        return self.runner.baselines(task, instances)

    def turns(self, task: SearchTask, request: Any, interrupted: Any) -> Any:
        self._raise("turns")
        assert BINARY in {build.binary for build in request.builds}
        return self.runner.turns(task, request, interrupted)

    def close(self) -> None:
        self.runner.close()

    def _raise(self, method: str) -> None:
        if method in self.errors:
            raise self.errors[method]


class Recorder(FakeRecorder):
    """Keeps what is recorded, unless it is to raise."""

    error: Exception | None = None

    def record(self, *args: Any) -> None:
        if self.error is not None:
            raise self.error
        super().record(*args)


@dataclass
class Bed:
    """A search and what it works with."""

    opened: OpenSearch
    builder: Builder = field(default_factory=Builder)
    recorder: Recorder = field(default_factory=Recorder)
    errors: dict[str, Exception] = field(default_factory=dict)
    is_wrong: bool = False
    trial_s: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)
    fleet: Fleet = field(init=False)

    def search(self, past: Sequence[TuningRecord] = (), **more: Any) -> TaskSearch:
        self.fleet = Fleet(1, trial_s=self.trial_s)
        runner: Any = Wrapped(self.fleet.runner(), self.errors, self.is_wrong)
        return self.opened(
            TASK,
            SearchTools(
                self.builder,
                runner,
                self.recorder,
                self.stop.is_set,
                self.finish.is_set,
            ),
            SearchStart(past=past),
            parallel_builds=1,
            **more,
        )


@pytest.fixture
def bed(open_search: OpenSearch) -> Bed:
    return Bed(open_search)


def test_what_is_measured_is_recorded_and_a_library_is_made_of_it(bed: Bed) -> None:
    with closing(bed.search()) as search:
        assert search.explore(TRIALS) is EndedBy.TRIALS
        trials = search.summary.trials
        assert 0 < trials == len(bed.recorder.results)
        assert search.explore(Budget(2 * trials + 8, None)) is EndedBy.TRIALS
        assert trials < search.summary.trials == len(bed.recorder.results)
        tuned = search.finalize("job")
    assert tuned.summary.phase == Stage.DONE
    assert tuned.summary.trials == len(bed.recorder.results)
    assert tuned.files["library.so"] == BINARY
    assert tuned.manifest["digest"] == tuned.summary.digest
    assert {type(content) for content in tuned.files.values()} == {bytes}
    names = [(result.kernel, result.instance, result.attempt) for result in bed.recorder.results]
    assert len(set(names)) == len(names)


def test_a_search_goes_on_from_its_records(bed: Bed) -> None:
    from tests.searching import records  # noqa: PLC0415

    with closing(bed.search()) as search:
        search.explore(TRIALS)
    past = records(bed.recorder.results)
    with closing(bed.search(past=past)) as search:
        search.explore(Budget(48, None))
        assert len(past) < search.summary.trials == len(bed.recorder.results)
    names = [(result.kernel, result.instance, result.attempt) for result in bed.recorder.results]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("error", [DeviceLost("no device 'local'"), StorageUnavailable("away"), ValueError("a defect")])
@pytest.mark.parametrize("method", ["run", "baselines"])
def test_what_a_runner_raises_is_raised(bed: Bed, method: str, error: Exception) -> None:
    bed.errors[method] = error
    with closing(bed.search()) as search, pytest.raises(type(error), match=str(error)) as raised:
        search.explore(TRIALS)
    assert type(raised.value) is type(error)


def test_a_device_that_fails_over_the_baselines_ends_nothing(bed: Bed) -> None:
    bed.errors["baselines"] = DeviceFailed("its process ended")
    with closing(bed.search()) as search:
        assert search.explore(TRIALS) is EndedBy.TRIALS
    said = [str(event.data.get("message")) for event in bed.recorder.events]
    assert "nothing to compare with: its process ended" in said


def test_a_search_ends_with_the_final_comparison(bed: Bed) -> None:
    with closing(bed.search()) as search:
        search.explore(TRIALS)
        found = search.finalize(None).summary.comparison
    assert found is not None and {ratio.over for ratio in found.ratios} == {"default", "numpy"}
    assert all(ratio.verdict for ratio in found.ratios)
    # NumPy's points are those that were timed beside the library.
    (stored,) = bed.recorder.compared[-1:]
    assert [point.latency_s for point in stored.points] == [times["numpy"] for times in found.times_s.values()]


def test_a_device_that_takes_no_turns_loses_only_the_comparison(bed: Bed) -> None:
    bed.errors["turns"] = DeviceFailed("device d is of a release that takes no turns")
    with closing(bed.search()) as search:
        search.explore(TRIALS)
        assert search.finalize(None).summary.comparison is None
    said = [str(event.data.get("message")) for event in bed.recorder.events]
    assert any("not compared with the default and NumPy: device d is of a release" in message for message in said)


@pytest.mark.parametrize("error", [BuilderLost("it has died"), OSError(28, "no space left")])
def test_what_a_builder_raises_is_raised(bed: Bed, error: Exception) -> None:
    bed.builder.error = error
    with closing(bed.search()) as search, pytest.raises(type(error)) as raised:
        search.explore(TRIALS)
    assert str(raised.value) == str(error)


def test_a_library_that_cannot_be_compiled_says_why(bed: Bed) -> None:
    bed.builder.library_error = LibraryFailed("no such instruction")
    with closing(bed.search()) as search:
        search.explore(TRIALS)
        with pytest.raises(LibraryFailed, match="no such instruction"):
            search.finalize(None)


ERRORS = (LeaseLost("another has it"), StorageUnavailable("the disk is full"))
BY_MESSAGES = [*itertools.product(["here", "messages"], ERRORS)]
"""An actor's errors are those of its messages."""


@pytest.mark.parametrize(
    ("open_search", "error"),
    spread(chosen(BY_MESSAGES, itertools.product(["here", "messages", "ray"], ERRORS))),
    indirect=["open_search"],
)
def test_what_a_recorder_raises_is_raised(bed: Bed, error: Exception) -> None:
    bed.recorder.error = error
    with closing(bed.search()) as search, pytest.raises(type(error), match=str(error)):
        search.explore(TRIALS)


def test_a_library_that_is_wrong_is_not_made(bed: Bed) -> None:
    bed.is_wrong = True
    with closing(bed.search()) as search:
        search.explore(TRIALS)
        with pytest.raises(VerificationFailed, match="wrong"):
            search.finalize(None)


def test_a_policy_that_nobody_knows_is_refused(bed: Bed) -> None:
    with pytest.raises(InvalidInput) as raised:
        bed.search(policy="the best one")
    assert raised.value.field == "policy"


def test_a_stop_ends_what_is_running(bed: Bed) -> None:
    bed.trial_s = FOREVER_S
    with closing(bed.search()) as search:
        threading.Timer(0.5, bed.stop.set).start()
        with pytest.raises(Cancelled):
            search.explore(TRIALS)
    assert bed.recorder.results == []


def finish_after_trials(bed: Bed) -> None:
    wait_for(lambda: len(bed.recorder.results) > 8)
    bed.finish.set()


def test_a_search_that_is_to_finish_has_the_library_of_what_it_measured(bed: Bed) -> None:
    bed.trial_s = 0.02
    with closing(bed.search()) as search:
        ending = threading.Thread(target=finish_after_trials, args=(bed,))
        ending.start()
        with pytest.raises(Finishing):
            search.explore(Budget(100_000, None))
        ending.join()
        tuned = search.finish("job", 60.0)
    assert tuned.summary.ended_by is EndedBy.CANCELLED
    assert tuned.files["library.so"] == BINARY


def test_a_trial_is_ended_with_the_budget(bed: Bed) -> None:
    bed.trial_s = FOREVER_S
    with closing(bed.search()) as search:
        assert search.explore(Budget(None, 2.0)) is EndedBy.SECONDS
    assert bed.recorder.results == []

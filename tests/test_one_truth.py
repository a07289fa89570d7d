"""Whatever a search measured, every view of it gives the same figures: command line, events, pages, report and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.dashboard import kernels as kernel_pages
from service.dashboard import presenters
from service.jobs.schemas import JobDetail
from shapewright.cli.describe import described, ended_text
from shapewright.cli.display import JobView
from shapewright.report import ReportedJob, ReportedTask
from shapewright.report.page import _headline, _instances
from tests.serving import small_dispatcher
from tuner.blas import Blas
from tuner.device_speed import DeviceSpeed, SpeedState
from tuner.durations import format_duration
from tuner.figures.shapes import served
from tuner.figures.view import SearchView
from tuner.library.dispatcher import Dispatcher
from tuner.program.job.jobspec import Budget, parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.records import NUMPY, Baseline, Baselines, ErrorKind, MeasureResult, Phase
from tuner.schedule import space_of
from tuner.search.budget import BudgetTracker
from tuner.search.context import SearchContext
from tuner.search.observations import compared_at, normalized, reference_anchor_s
from tuner.search.outcome import LIBRARY, SO_FAR
from tuner.search.summary import JobSummary, SearchSummary, Stage
from tuner.search.trials import Trials
from tuner.search.verdict import DEFAULT, FinalComparison, Ratio
from tuner.storage import Job, JobState, SearchTaskRow

SPEC: dict[str, Any] = {
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 64, "k": 32}},
    "shape_vars": {"T": {"min": 1, "max": 128}},
    "instances": [{"T": 5}, {"T": 60, "weight": 3.0}, {"T": 128, "weight": 0.5}],
    "target": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2},
    "budget": {"trials": 128, "seconds": 60},
}
TWO: dict[str, Any] = {
    **{name: value for name, value in SPEC.items() if name != "workload"},
    "workloads": [SPEC["workload"] | {"count": 3}, {"op": "dense", "args": {"m": "16*T", "n": 96, "k": 32}}],
}
TASKS = parse_job(TWO).tasks


def kernels_of(task: SearchTask) -> list[Any]:
    dispatcher, rng = small_dispatcher(task), np.random.default_rng(3)
    return [*dispatcher.kernels, *(space_of(task).mutate(dispatcher.kernels[0], rng) for _ in range(2))]


KERNELS = [kernels_of(task) for task in TASKS]
LATENCIES = st.floats(1e-6, 1e-2)
READINGS = st.tuples(
    st.integers(0, 3),  # the kernel
    st.integers(0, 2),  # the instance
    st.none() | LATENCIES,
    st.sampled_from(Phase),
    st.none() | st.floats(1e-6, 4e-6),  # the anchor
)


def _ratio(over: str, ratio: float, wide: float) -> Ratio:
    return Ratio(over, ratio, ratio / wide, ratio * wide)


HISTORIES = st.tuples(
    st.lists(st.lists(READINGS, min_size=1, max_size=6), max_size=6),  # batches of results
    st.lists(st.none() | LATENCIES, min_size=3, max_size=3),  # NumPy's times
    st.booleans(),  # whether there is a library
)
GAINS = st.floats(0.5, 3.0)
COMPARISONS = st.builds(
    FinalComparison,
    LATENCIES,
    st.tuples(*(st.builds(_ratio, st.just(over), GAINS, st.floats(1.0, 1.3)) for over in (DEFAULT, "numpy"))),
    st.just({}),
    st.integers(4, 15),
    device_speed=st.none() | st.builds(DeviceSpeed, st.sampled_from(SpeedState), LATENCIES, LATENCIES, st.floats(0, 1)),
    blas=st.none() | st.just(Blas("openblas", "0.3", "Haswell", 1, "its kernels are too old")),
)


class Searched:
    """What is known of one search task, as the parts of the system hold it."""

    def __init__(self, position: int, history: Any) -> None:
        batches, by_numpy, self.has_library = history
        self.task: SearchTask = TASKS[position]
        self.position = position
        points = tuple(
            Baseline(NUMPY, instance, latency, 2e-6)
            for instance, latency in zip(self.task.instances, by_numpy, strict=True) if latency
        )  # fmt: skip
        self.baselines = Baselines(points)
        self.results: list[MeasureResult] = []
        told: Any = SimpleNamespace(update=lambda results: None, at_speed=lambda anchor_s: None, interval_coverage=None)
        tracker = BudgetTracker(Budget(128, 60.0), clock=lambda: 0.0)
        unused: Any = None
        context = SearchContext(self.task, unused, told, told, unused, tracker, unused)
        trials = Trials(context, self.baselines)
        for batch in batches:
            results = [self._result(*reading) for reading in batch]
            trials.add_results(results)
            self.results += results
        self.summary: SearchSummary = trials.summary(Stage.DONE)
        self.dispatcher: Dispatcher | None = small_dispatcher(self.task) if self.has_library else None
        if self.dispatcher:
            result = trials.library_objective_s(self.dispatcher)
            self.summary = replace(self.summary, kernels=2, digest="d", library_objective_s=result)

    def _result(self, kernel: int, instance: int, latency_s: float | None, phase: Phase, anchor: Any) -> MeasureResult:
        error = ErrorKind.CRASH if latency_s is None else None
        result = MeasureResult(
            KERNELS[self.position][kernel], self.task.instances[instance], latency_s, error_kind=error, phase=phase
        )
        return replace(result, anchor_s=anchor, round=1)

    @property
    def view(self) -> SearchView:
        """As figures, pages and reports make it of what is stored."""
        compared = compared_at(self.baselines, reference_anchor_s(self.results))
        return SearchView(self.task, normalized(self.results), (self.summary,), self.dispatcher, compared)

    @property
    def row(self) -> SearchTaskRow:
        key, fingerprint = self.task.workload.key, self.task.known_target.fingerprint
        count = TWO["workloads"][self.position].get("count", 1)
        return SearchTaskRow(
            self.position + 1, "job-1", self.position, count, key, fingerprint, self.task, 0.0, self.has_library
        )


def job_of(spec: Mapping[str, Any], searches: Sequence[Searched]) -> Job:
    summary = JobSummary({place: searched.summary for place, searched in enumerate(searches)})
    return Job(
        "job-1", "n", "", JobState.COMPLETED, "local", dict(spec), "2026-01-01T00:00:00Z", None, None, 1, "w",
        sum(len(searched.results) for searched in searches), "",
        json.loads(json.dumps(summary.to_json(len(searches)))),
    )  # fmt: skip


def weighted(task: SearchTask, times: Iterable[float], kept: Sequence[bool]) -> float | None:
    """The weighted time of the instances that are kept; None if one of them is not known."""
    result = [instance.weight * time for instance, time, keep in zip(task.instances, times, kept, strict=True) if keep]
    return None if np.isnan(result).any() else sum(result)


@settings(max_examples=150)
@given(HISTORIES)
def test_the_summary_is_what_figures_pages_and_reports_compute_from_the_records(history: Any) -> None:
    searched = Searched(0, history)
    task, view, outcome = searched.task, searched.view, searched.summary.outcome
    columns, count = view.columns, len(task.instances)
    default = columns.default[1][:count]
    compared = list(~np.isnan(default)) if (~np.isnan(default)).any() else [True] * count
    best_s = weighted(task, columns.best_s[:count], compared)
    library_s = weighted(task, served(view)[1], compared) if searched.has_library else None
    assert outcome.label == (LIBRARY if library_s else SO_FAR)
    assert outcome.objective_s == pytest.approx(library_s or best_s)
    default_s = weighted(task, default, compared)
    gain = default_s / (library_s or best_s) if default_s and (library_s or best_s) else None  # type: ignore[operator]
    assert outcome.speedup_vs_default == pytest.approx(gain)
    timed = {point.instance.values: point.latency_s for point in view.baselines.points}
    numpy_s = weighted(task, [timed.get(each.values, np.nan) for each in task.instances], compared)
    gain = numpy_s / (library_s or best_s) if numpy_s and best_s else None
    assert outcome.speedup_vs_numpy == pytest.approx(gain)
    # The kernel pages' columns, and the report's table.
    for kernel in KERNELS[0]:
        for place, timing in enumerate(kernel_pages.timings(view, kernel.id)):
            assert timing.best_s == pytest.approx(None if np.isnan(columns.best_s[place]) else columns.best_s[place])
            times = columns.table(columns.index_of([kernel]))[0]
            known = None if place >= len(times) or np.isnan(times[place]) else times[place]
            assert timing.latency_s == pytest.approx(known)
    table = _instances(ReportedTask(0, "native", view))
    for line, time in zip(table, served(view)[1], strict=True):
        assert line[3] == ("–" if np.isnan(time) else format_duration(float(time)))


@settings(max_examples=100)
@given(st.lists(st.tuples(HISTORIES, st.none() | COMPARISONS), min_size=1, max_size=2))
def test_every_view_of_a_job_gives_the_same_figures(histories: list[Any]) -> None:
    searches = [Searched(position, history) for position, (history, _) in enumerate(histories)]
    for searched, (_, comparison) in zip(searches, histories, strict=True):
        searched.summary = replace(searched.summary, comparison=comparison)
    spec = SPEC if len(searches) == 1 else TWO
    job = job_of(spec, searches)
    rows = [replace(searched.row, count=1) if len(searches) == 1 else searched.row for searched in searches]
    document = JobDetail.complete(job, [row.workload_key for row in rows], rows).model_dump(mode="json")
    truth = document["outcome"]
    # Totals weigh each workload by its count.
    known = [(row.count * s.summary.outcome.objective_s, s) for row, s in zip(rows, searches, strict=True)
             if s.summary.outcome.objective_s]  # fmt: skip
    assert truth["objective_s"] == pytest.approx(sum(time for time, _ in known) if known else None)
    # The dashboard's list and headline.
    line = presenters.line_of(job, {})
    shown = [None if ratio is None else ratio.ratio for ratio in (line.speedup, line.vs_numpy)]
    assert shown == [truth["speedup_vs_default"], truth["speedup_vs_numpy"]]
    for position, searched in enumerate(searches):
        own = searched.summary.outcome
        headline = " ".join(f"{figure} {what}" for figure, what in presenters.headline(searched.summary))
        for ratio in own.ratios:
            assert f"{ratio.figure} {ratio.rival}" in headline and own.label in headline
        # Events, and the stored summary.
        stored = job.summary if len(searches) == 1 else job.summary["tasks"][str(position)]
        assert stored["outcome"] == own.to_json()
    # The command line.
    view = JobView.of(document)
    for position, searched in enumerate(searches):
        view.apply("progress", searched.summary.to_json() | {"position": position})
    gains = truth["ratios"]
    assert view.outcome.to_json() == {name: truth[name] for name in view.outcome.to_json()}
    for text in (described(document), ended_text(document), "\n".join(map(str, view.rows())) or view.line()):
        for gain in gains:
            assert gain["figure"] in text
        assert all(caution in text for caution in truth["cautions"] if gains)
    if gains:
        assert truth["label"] in ended_text(document)
    # The report.
    reported = tuple(
        ReportedTask(row.position, "native", searched.view, row.count)
        for row, searched in zip(rows, searches, strict=True)
    )
    sentence = _headline(ReportedJob(document, reported, ()))
    assert all(gain["text"] in sentence for gain in gains)
    assert all(caution in sentence for caution in truth["cautions"] if gains)
    assert gains or sentence == "Nothing to compare yet."


def test_a_job_says_how_many_of_its_trials_it_made() -> None:
    target = Target.from_json(SPEC["target"])
    assert TASKS[0].known_target == target
    searched = Searched(0, ([[(0, 0, 1e-3, Phase.THEORY, None)]], [None] * 3, False))
    job = job_of(SPEC, [searched])
    row = replace(searched.row, count=1)
    document = JobDetail.complete(job, [row.workload_key], [row]).model_dump(mode="json")
    document["trials"] = 35
    assert "  35 of 128 trials  " in ended_text(document)

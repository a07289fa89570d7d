"""Tuning in this process: `sw.tune`. The same search as a worker's, on a private device of this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shapewright.calibrations import rates_here
from shapewright.defaults import ensure_home
from shapewright.download import write
from shapewright.library import Library, library_in
from shapewright.progress import rows_of, table
from shapewright.warm_start import records_of
from tuner.library.dispatcher import Dispatcher
from tuner.measure import FIRST_GPU
from tuner.program.job.jobspec import check_policy, parse_budget
from tuner.program.job.policies import DEFAULT_POLICY
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.program.target import native
from tuner.program.target.rates import TYPICAL
from tuner.records import NO_BASELINES, Baselines, MeasureResult
from tuner.search.reuse import NOTHING, shared_knowledge
from tuner.search.summary import SearchSummary, Stage
from tuner.search.tuning import SearchStart, SearchTools, Tuned, tune
from tuner.search.verdict import DEFAULT
from tuner.storage import NewEvent

if TYPE_CHECKING:
    from shapewright.client import Client

Callback = Callable[[JsonObject], None]
"""Called with the data of every progress event (tuner.search.summary.SearchSummary)."""


@dataclass(repr=False)
class TuneResult:
    """What `sw.tune` found: every result it measured, what they compare with, the figures, and the library."""

    task: SearchTask
    tuned: Tuned
    results: list[MeasureResult] = field(default_factory=list)
    baselines: Baselines = NO_BASELINES

    def __repr__(self) -> str:
        summary = self.tuned.summary
        kernels, trials, over_default = summary.kernels, summary.trials, summary.outcome.ratio(DEFAULT)
        gain = f", {over_default}" if over_default else ""
        return f"<TuneResult {self.task.workload}: {trials} trials{gain}, {kernels} kernel{'s' * (kernels != 1)}>"

    def _repr_html_(self) -> str:
        """The figures, and the kernel of each tuned shape, for a notebook."""
        summary = self.tuned.summary
        dispatcher = Dispatcher.from_json(self.tuned.dispatch)
        kernels = [(str(each), str(dispatcher.kernel_for(each.shape))) for each in self.task.instances]
        figures = [("workload", str(self.task.workload)), *rows_of(summary), ("kernels", str(summary.kernels))]
        return table(figures) + table(kernels)

    @property
    def summary(self) -> JsonObject:
        """The figures of the search, as the callbacks get them."""
        return self.tuned.summary.to_json()

    def save(self, directory: str | Path) -> Path:
        """Write the library's files, as `shapewright pull` does."""
        write(self.tuned.files, Path(directory))
        return Path(directory)

    def build(self, directory: str | Path | None = None) -> Library:
        """The library, loaded; its files are kept in ``directory`` if one is given."""
        if directory is not None:
            return library_in(self.save(directory))
        with tempfile.TemporaryDirectory(prefix="shapewright-") as folder:
            return library_in(self.save(folder))


class _Collector:
    """A Recorder that keeps results in memory and calls the callbacks."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.results: list[MeasureResult] = []
        self.baselines = NO_BASELINES
        self._callbacks = callbacks

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float, summary: SearchSummary
    ) -> None:
        self.results += results
        for event in events:
            if event.kind == "progress":
                self._call(event.data)

    def say(self, summary: SearchSummary) -> None:
        """Tell the callbacks what no event of the search does."""
        self._call(summary.to_json())

    def _call(self, data: JsonObject) -> None:
        for callback in self._callbacks:
            callback(data)

    def record_baselines(self, baselines: Baselines) -> None:
        self.baselines = baselines


def tune_here(
    task: SearchTask,
    *,
    trials: int | None = None,
    seconds: float | None = None,
    policy: str = DEFAULT_POLICY,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    warm_start: Client | str | Path | None = None,
    calibrated: bool = True,
) -> TuneResult:
    """Tune ``task`` on this machine, in child processes of this one, and return when its library is built.

    ``trials`` and ``seconds`` (at least one of them) bound the search; ``policy`` names what chooses the trials.
    ``warm_start`` is what the search starts from: a client or the URL of a service, a file that `shapewright export`
    wrote, or a directory of `shapewright tune`. The best kernels there are verified and timed again before they count;
    ``trials=0`` reads nothing. Theory takes the rates of the task (``SearchTask.at_rates``) or, where these are the
    typical ones and ``calibrated``, those of this machine: what `shapewright device calibrate` measured, or else what
    its caches and units are measured to do in a second. ``callbacks`` are called with the figures of the search
    whenever they change, from the start on (`sw.Progress()` shows them). ``seconds`` count from the call on. Nothing is
    stored; `shapewright tune` records the same search in a directory. Raises InvalidInput, ServiceError,
    tuner.search.tuning.VerificationFailed.
    """
    began_s = time.monotonic()
    budget, policy = parse_budget({"trials": trials, "seconds": seconds}), check_policy(policy)
    collector = _Collector(callbacks)
    # Before the compiler is loaded, which takes seconds.
    collector.say(SearchSummary(Stage.PLAN, trials_budget=budget.trials, seconds_budget=budget.seconds))

    ensure_home()
    from tuner.measure.local import local_tools  # noqa: PLC0415 - TVM, for those who tune

    task = task if task.target else task.on(native())
    known = NOTHING
    if warm_start is not None and budget.trials != 0:
        known = shared_knowledge(records_of(warm_start, [task]), task)
    # A library of theory alone needs no GPU: it is verified where one runs it.
    gpu = FIRST_GPU if task.known_target.gpu is not None and budget.trials != 0 else None
    with local_tools(gpu) as (builder, runner):
        task = task.at_rates(rates_here(task, runner)) if calibrated and task.rates == TYPICAL else task
        tuned = tune(
            task,
            SearchTools(builder, runner, collector),
            SearchStart(knowledge=known, spent_s=time.monotonic() - began_s),
            budget=budget,
            policy=policy,
            seed=seed,
        )
    return TuneResult(task, tuned, collector.results, collector.baselines)
